"""Power laws: the slope of log error against log size, with an interval over seeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sharedspan.paper.table import Table


@dataclass(frozen=True)
class Exponent:
    """Mean over seeds of the fitted slope, and a 95 percent interval."""

    value: float
    low: float
    high: float
    n_seeds: int

    def __str__(self) -> str:
        return f"{self.value:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"

    def near(self, target: float, tolerance: float) -> bool:
        """Whether the slope lies within ``tolerance`` of ``target``."""
        return abs(self.value - target) <= tolerance


def exponent(table: Table, by: str, measure: str = "error") -> Exponent:
    """The slope of log ``measure`` in log ``by``, a straight line through each seed's points.

    The interval is Student's, over the slopes of the seeds: data of different seeds are
    independent. With one seed there is none.
    """
    from scipy.stats import t

    slopes = np.array([_slope(seed, by, measure) for _, seed in table.groups("seed")])
    mean, n = float(slopes.mean()), len(slopes)
    if n < 2:
        return Exponent(mean, -np.inf, np.inf, n)
    half = float(t.ppf(0.975, n - 1) * slopes.std(ddof=1) / np.sqrt(n))
    return Exponent(mean, mean - half, mean + half, n)


def _slope(table: Table, by: str, measure: str) -> float:
    x, y = table.column(by).astype(float), table.column(measure).astype(float)
    if not (y > 0).all():  # a run that never got there
        return np.nan
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
