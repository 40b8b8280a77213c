"""Calibration of predicted means, over rows in bins and over tasks, and of intervals.

Among the rows with a predicted probability near p, a share near p should be of class 1; and the
mean over a task's rows should be near the share in the task. Counts and their means likewise.
Intervals of level 95 % should contain 95 % of the responses that they were not fitted to.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sharedspan.families import Binomial, Family

BINS = 10
FEWEST_ROWS = 20  # in a bin
QUANTILE = 1.96  # of a 95 % interval
INTERVAL_LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)


class Reliability(NamedTuple):
    """Predicted and observed means of groups of rows, with 95 % intervals of the observed ones."""

    predicted: np.ndarray  # (groups,)
    observed: np.ndarray
    low: np.ndarray
    high: np.ndarray
    rows: np.ndarray  # numbers of rows


def reliability_of_bins(family: Family, y: np.ndarray, mean: np.ndarray) -> Reliability:
    """Bins of about equally many rows, ordered by predicted mean; equal means are in one bin."""
    n_bins = int(np.clip(len(y) // FEWEST_ROWS, 1, BINS))
    edges = np.quantile(mean, np.arange(1, n_bins) / n_bins)
    return _reliability(family, y, mean, np.searchsorted(edges, mean, side="right"))


def reliability_of_tasks(
    family: Family, y: np.ndarray, mean: np.ndarray, codes: np.ndarray
) -> Reliability:
    """The tasks that have rows, in the order of their codes."""
    return _reliability(family, y, mean, codes)


def _reliability(family: Family, y: np.ndarray, mean: np.ndarray, group: np.ndarray) -> Reliability:
    _, place, n = np.unique(group, return_inverse=True, return_counts=True)
    predicted, observed = (np.bincount(place, values) / n for values in (mean, y))
    if isinstance(family, Binomial):
        return Reliability(predicted, observed, *wilson_interval(observed, n), n)
    squares = np.bincount(place, (y - observed[place]) ** 2)
    reach = QUANTILE * np.sqrt(squares / np.maximum(n - 1, 1) / n)
    return Reliability(predicted, observed, np.maximum(observed - reach, 0), observed + reach, n)


def wilson_interval(share: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's 95 % interval of shares of n rows, which is never empty."""
    z = QUANTILE**2 / n
    centre = (share + z / 2) / (1 + z)
    reach = np.sqrt(z * share * (1 - share) + z**2 / 4) / (1 + z)
    # At 0 and 1 rounding might leave the observed share outside.
    return np.clip(centre - reach, 0.0, share), np.clip(centre + reach, share, 1.0)


def covered_rows(model: Any, X: np.ndarray, y: np.ndarray, task: np.ndarray) -> np.ndarray | None:
    """Whether each response is in the model's interval of each level, (rows, levels).

    None if the model has no intervals, or none of a finite length, or responses are 0 or 1.
    """
    if isinstance(model.response_family(), Binomial) or not hasattr(model, "predict_interval"):
        return None
    inside = np.empty((len(y), len(INTERVAL_LEVELS)), dtype=bool)
    for j, level in enumerate(INTERVAL_LEVELS):
        try:
            low, high = model.predict_interval(X, task=task, level=level)
        except (ValueError, ArithmeticError, np.linalg.LinAlgError):
            return None
        if not (np.isfinite(low).all() and np.isfinite(high).all() and np.any(high > low)):
            return None
        inside[:, j] = (low <= y) & (y <= high)
    return inside
