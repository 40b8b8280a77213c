"""Compiled loops over task statistics and rows, for the CPU and for GPUs."""
