"""Sample sizes: rows per task for a given error, or the error to expect from given rows.

The error is the mean over tasks of |v - v*|^2, for N rows per task with noise sigma and
uncorrelated features of variance one; it is then also the mean squared error of predictions in
excess of the noise. Three formulas:

    floor      sigma^2 k (d + T - k) / (N T)    the best fit of rank k, for many rows
    rate       sigma^2 d k / (N T)              the paper's bound, its constant taken as one
    separate   sigma^2 d / (N - d - 1)          least squares in each task, exact for Gaussian x

The rate leaves out the contribution of each task's own k weights, so it is below the floor if there
are more tasks than features.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any

from sharedspan.inference.noise import error_floor

ROUNDING_SHARE = 1e-12  # relative tolerance before a number of rows is rounded up
# Error over floor at d = 50, T = 100, k = 3: about 2 with 3 rows per parameter, 1.4 with 5, 1.07
# with 10 and 1.05 with 20 (three seeds, the exact minimiser).
ENOUGH_ROWS = 10


@dataclass(frozen=True)
class Plan:
    """Rows per task and error by each of three formulas; see ``plan``."""

    n_tasks: int
    n_features: int
    rank: int
    noise: float
    asked: str  # "n_samples" or "error": which of the two was computed
    n_samples: int  # at the floor
    error: float
    n_samples_by_rate: int
    error_by_rate: float
    n_samples_separate: int
    error_separate: float  # infinite for too few rows

    @property
    def fewest_samples(self) -> int:
        """Rows per task below which the model has more parameters than there are rows."""
        return _fewest(self.n_tasks, self.n_features, self.rank)

    @property
    def rows_per_number(self) -> float:
        """Rows of all tasks per parameter, of which the model has k (d + T - k)."""
        parameters = self.rank * (self.n_features + self.n_tasks - self.rank)
        return self.n_samples * self.n_tasks / parameters

    def __str__(self) -> str:
        size = (
            f"{self.n_tasks} tasks, {self.n_features} features, rank {self.rank}, "
            f"noise {self.noise:g}"
        )
        if self.asked == "n_samples":
            head = f"Rows per task for a mean squared error of {self.error:.4g} in the coefficients"
            cells = [
                f"{n:,}" for n in (self.n_samples, self.n_samples_by_rate, self.n_samples_separate)
            ]
        else:
            head = f"Mean squared error in the coefficients with {self.n_samples:,} rows per task"
            cells = [
                f"{e:.4g}" if math.isfinite(e) else "none"
                for e in (self.error, self.error_by_rate, self.error_separate)
            ]
        width = max(map(len, cells))
        words = (
            "with a shared span, at the floor sigma^2 k (d + T - k) / (N T)",
            "by the paper's rate sigma^2 d k / (N T), its constant taken as one",
            "with separate regressions, sigma^2 d / (N - d - 1)",
        )
        lines = [f"{head} ({size}):"]
        lines += [f"  {cell:>{width}}  {word}" for cell, word in zip(cells, words, strict=True)]
        return "\n".join([*lines, self._conclusion()])

    def _conclusion(self) -> str:
        if self.n_samples < self.fewest_samples:
            return (
                f"Below {self.fewest_samples:,} rows per task there are fewer rows than "
                "parameters: these errors cannot be reached."
            )
        if self.asked == "n_samples":
            gain = self.n_samples_separate / self.n_samples
            conclusion = f"Separate regressions need {gain:.1f} times as many rows."
            if gain < 1.05:
                conclusion = "Sharing the span saves no rows."
        elif math.isinf(self.error_separate):
            conclusion = (
                f"Separate regressions need more than {self.n_features + 1:,} rows; a shared span "
                "does not."
            )
        elif self.error == 0:
            conclusion = "Without noise both are exact."
        else:
            gain = self.error_separate / self.error
            conclusion = f"Sharing the span reduces the error by a factor of {gain:.1f}."
        if self.noise > 0 and self.rows_per_number < ENOUGH_ROWS:
            conclusion += (
                f" There are only {self.rows_per_number:.1f} rows per parameter: fits come near "
                f"the floor from about {ENOUGH_ROWS} on, so expect a larger error."
            )
        return conclusion + " All this is for uncorrelated features of variance one."


def plan(
    *,
    n_tasks: int,
    n_features: int,
    rank: int,
    noise: float,
    error: float | None = None,
    n_samples: int | None = None,
) -> Plan:
    """Compute the rows per task for a given error, or the error to expect from given rows.

    Parameters
    ----------
    n_tasks, n_features, rank : int
        T, d and k.
    noise : float
        Standard deviation of the noise.
    error : float, optional
        Mean over tasks of |v - v*|^2 to reach.
    n_samples : int, optional
        Rows per task; give either this or ``error``.

    Returns
    -------
    Plan
        ``n_samples`` and ``error`` at the floor, ``n_samples_by_rate`` and ``error_by_rate`` by
        the paper's rate, ``n_samples_separate`` and ``error_separate`` for separate regressions.
        Print it for an explanation.

    References
    ----------
    Ding, Du and Fang (2026), corollary of the main theorem, for the rate.

    Examples
    --------
    >>> import sharedspan as ss
    >>> ss.plan(n_tasks=100, n_features=50, rank=3, noise=0.5, error=0.02).n_samples
    56
    """
    for name, value in (("n_tasks", n_tasks), ("n_features", n_features), ("rank", rank)):
        _require_count(name, value)
    _require_number("noise", noise, above=False)
    if rank > min(n_features, n_tasks):
        raise ValueError(
            f"rank={rank} is larger than min({n_features} features, {n_tasks} tasks): give a rank "
            f"from 1 to {min(n_features, n_tasks)}."
        )
    if (error is None) == (n_samples is None):
        raise ValueError(f"Give either error or n_samples, not {error=} and {n_samples=}.")
    # The three errors are a_i / (N - b_i).
    variance, d = float(noise) ** 2, n_features
    floor = error_floor(1, d, n_tasks, rank, noise) / n_tasks
    curves = ((floor, 0), (variance * d * rank / n_tasks, 0), (variance * d, d + 1))
    if n_samples is not None:
        _require_count("n_samples", n_samples)
        rows = [int(n_samples)] * 3
        errors = [a / (n_samples - b) if n_samples > b else math.inf for a, b in curves]
    else:
        _require_number("error", error, above=True)
        assert error is not None
        fewest = (_fewest(n_tasks, d, rank), 1, d + 2)
        rows = [
            max(b + math.ceil(a / error * (1 - ROUNDING_SHARE)), least)
            for (a, b), least in zip(curves, fewest, strict=True)
        ]
        errors = [float(error)] * 3
    asked = "error" if error is None else "n_samples"
    return Plan(
        int(n_tasks), int(n_features), int(rank), float(noise), asked,
        rows[0], errors[0], rows[1], errors[1], rows[2], errors[2],
    )  # fmt: skip


def _fewest(n_tasks: int, n_features: int, rank: int) -> int:
    """Least rows per task: more than its weights, and in total as many as parameters."""
    return max(rank + 1, math.ceil(rank * (n_features + n_tasks - rank) / n_tasks))


def _require_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{name}={value!r} must be a whole number of at least 1.")


def _require_number(name: str, value: Any, *, above: bool) -> None:
    words = "a finite number above 0" if above else "a finite number of at least 0"
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not math.isfinite(value) or value < 0 or (above and value == 0):
        raise ValueError(f"{name}={value!r} must be {words}.")
