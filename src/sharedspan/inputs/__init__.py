"""What users bring: arrays, frames and files, validated once."""
