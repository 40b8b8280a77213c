"""Power laws: the slope of log error against log size, with an interval over seeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sharedspan.paper.table import ResultTable


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


def exponent(table: ResultTable, by: str, measure: str = "error") -> Exponent:
    """The slope of log ``measure`` in log ``by``, a straight line through each seed's points.

    The interval is Student's, over the slopes of the seeds: data of different seeds are
    independent. With one seed it is infinite.
    """
    from scipy.stats import t

    slopes = np.array([
        log_slope(seed.column(by), seed.column(measure)) for _, seed in table.groups("seed")
    ])  # fmt: skip
    mean, n = float(slopes.mean()), len(slopes)
    if n < 2:
        return Exponent(mean, -np.inf, np.inf, n)
    half = float(t.ppf(0.975, n - 1) * slopes.std(ddof=1) / np.sqrt(n))
    return Exponent(mean, mean - half, mean + half, n)


def log_slope(x: np.ndarray, y: np.ndarray) -> float:
    """The slope of log y in log x; NaN where a y is missing, as of a count never reached."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    return float(np.polyfit(np.log(x), np.log(y), 1)[0]) if (y > 0).all() else np.nan
