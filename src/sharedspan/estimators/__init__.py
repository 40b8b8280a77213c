"""Thin doors: one file per statistic, all with the scikit-learn contract."""
