"""Noise, standard errors, the choice of a rank, and sample-size planning."""
