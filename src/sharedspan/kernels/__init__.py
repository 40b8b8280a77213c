"""The hot pass over the statistics, one file per kind of hardware."""
