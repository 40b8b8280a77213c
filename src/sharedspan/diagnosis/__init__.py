"""Diagnosis of fitted models: outliers, shared directions, held-out errors, advice."""
