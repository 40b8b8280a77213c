"""The errors of two methods on the same held-out rows: their ratio, and how sure it is.

Errors of two methods are correlated, as they are of the same rows, so they are compared task by
task: the interval of a ratio comes from the spread over tasks. A comparison of methods and the
report use it alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sharedspan.diagnosis.losses import Loss

FEWEST_TASKS = 5  # that an interval by their spread needs
ROUNDING = 1e-9  # relative difference of two errors that is rounding


@dataclass(frozen=True)
class Change:
    """Ratio of one method's error to another's: below one the first is better."""

    ratio: float  # of errors over all rows
    low: float  # 95 % interval, by the spread over tasks; 0 to infinity with too few tasks
    high: float
    gains: int  # tasks with a smaller error
    losses: int  # tasks with a larger one
    standard_error: float = math.inf  # of the ratio, by the spread over tasks
    n_tasks: int = 0

    @property
    def bounded(self) -> bool:
        """Whether there were enough tasks for an interval."""
        return math.isfinite(self.high)

    @property
    def clear(self) -> bool:
        """Whether the interval excludes a ratio of one."""
        return not self.low <= 1 <= self.high


def compared(mine: np.ndarray, other: np.ndarray, loss: Loss) -> Change:
    """The change from one method to another by the sums of their losses, (T,) each."""
    if not (mine.sum() > 0 and other.sum() > 0):
        ratio = math.inf if mine.sum() > 0 else float(not other.sum() > 0)
        better, worse = int(np.sum(mine < other)), int(np.sum(mine > other))
        return Change(ratio, ratio, ratio, better, worse, 0.0, len(mine))
    ratio = loss.shown(mine.sum() / other.sum())
    # To first order, the error of the log ratio is a sum over tasks.
    power = 0.5 if loss.is_root else 1.0
    parts = power * (mine / mine.sum() - other / other.sum())
    error = math.sqrt(np.sum(parts**2) * len(parts) / max(len(parts) - 1, 1))
    margin, interval = ROUNDING * other, _interval(ratio, error, len(parts))
    n_gains, n_losses = np.sum(mine < other - margin), np.sum(mine > other + margin)
    spread = ratio * error if len(parts) >= FEWEST_TASKS else math.inf
    return Change(ratio, *interval, int(n_gains), int(n_losses), spread, len(mine))


def _interval(ratio: float, error: float, n_tasks: int) -> tuple[float, float]:
    """95 % interval of a ratio whose logarithm has this standard error, by Student's t."""
    if n_tasks < FEWEST_TASKS:
        return 0.0, math.inf
    from scipy.stats import t

    reach = min(float(t.ppf(0.975, n_tasks - 1)) * error, 700.0)
    return ratio * math.exp(-reach), ratio * math.exp(reach)
