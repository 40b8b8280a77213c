"""Users' arrays, frames and files, validated once."""
