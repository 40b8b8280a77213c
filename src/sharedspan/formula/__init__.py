"""Formulas of mixed models: from text to columns and covariance structures."""
