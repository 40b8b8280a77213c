"""Sufficient statistics per task, and the canonical form of the problem."""
