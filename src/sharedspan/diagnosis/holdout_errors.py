"""Errors on held-out rows, task by task: the model against separate and pooled regressions.

Rows of each task are dealt into folds, and each fold is predicted by fits to the others: the model
with its rank and penalty as they were found, one regression per task, and one for all tasks.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sharedspan.diagnosis.rows import TaskRows
from sharedspan.estimators.base import TaskRegressor
from sharedspan.estimators.baselines import PerTaskRegressor, PooledRegressor

RIVALS = {"separate": "separate regressions", "pooled": "pooled regression"}
N_FOLDS = 4
FEWEST_ROWS = 4  # of a task: one to hold out, three to fit
FEWEST_TASKS = 5  # that an interval by their spread needs
STEADY = 1e-24  # share of the squares of the response within tasks that is rounding
NOTHING_TO_PREDICT = (
    "The response does not vary within tasks: there is nothing for features to predict."
)
ROUNDING = 1e-9  # share by which two errors differ without meaning it
PLAIN = {"engine": "local", "verbose": 0, "keep_statistics": False, "task_column": None}

Tick = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Change:
    """The model's error over that of a rival: below one it gains."""

    ratio: float  # of root mean squared errors over all rows
    low: float  # 95 % interval, by the spread over tasks; 0 to infinity where they are too few
    high: float
    gains: int  # tasks with a smaller error
    losses: int  # tasks with a larger one

    @property
    def bounded(self) -> bool:
        """Whether there were tasks enough for an interval."""
        return math.isfinite(self.high)

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out no change."""
        return not self.low <= 1 <= self.high


@dataclass(frozen=True)
class Gains:
    """Held-out squared errors; ``squares`` is by name ("model", "separate", "pooled"), (T,) each.

    ``rows`` (T,) are the rows held out of each task, 0 of those that have too few, ``small`` their
    number, ``total`` the squares about the tasks' means, and ``notes`` what the fits warned of.
    """

    squares: dict[str, np.ndarray]
    rows: np.ndarray
    total: float
    small: int
    notes: tuple[str, ...]

    def rmse(self, name: str) -> float:
        """Root mean squared error over all rows."""
        return float(np.sqrt(self.squares[name].sum() / self.rows.sum()))

    def task_rmse(self, name: str) -> np.ndarray:
        """Of each task, (T,); NaN for those with too few rows."""
        held = np.where(self.rows > 0, self.rows, np.nan)
        return np.sqrt(self.squares[name] / held)

    @property
    def explained(self) -> float:
        """Share of the squares about the tasks' means that the model predicts."""
        return 1 - float(self.squares["model"].sum()) / self.total if self.total > 0 else math.nan

    def change(self, rival: str) -> Change:
        """The model against a rival."""
        held = self.rows > 0
        mine, other = self.squares["model"][held], self.squares[rival][held]
        if not (mine.sum() > 0 and other.sum() > 0):
            return Change(1.0, 1.0, 1.0, 0, 0)
        ratio = math.sqrt(mine.sum() / other.sum())
        # The log ratio, to first order a sum over tasks.
        parts = 0.5 * (mine / mine.sum() - other / other.sum())
        error = math.sqrt(np.sum(parts**2) * len(parts) / max(len(parts) - 1, 1))
        margin = ROUNDING * other
        return Change(
            ratio,
            *_interval(ratio, error, len(parts)),
            int(np.sum(mine < other - margin)),
            int(np.sum(mine > other + margin)),
        )


def _interval(ratio: float, error: float, n_tasks: int) -> tuple[float, float]:
    """95 % interval of a ratio whose logarithm has this standard error, by Student's t."""
    if n_tasks < FEWEST_TASKS:
        return 0.0, math.inf
    from scipy.stats import t

    reach = min(float(t.ppf(0.975, n_tasks - 1)) * error, 700.0)
    return ratio * math.exp(-reach), ratio * math.exp(reach)


def find_gains(model: TaskRegressor, rows: TaskRows, tick: Tick | None = None) -> Gains | str:
    """Cross-validated errors of each task, or a sentence that says why there are none."""
    assert rows.y is not None
    T = len(model.coef_)
    size = np.bincount(rows.codes, minlength=T)
    large = size >= FEWEST_ROWS
    if np.sum(large) < 1 or np.sum(size > 0) < 2:
        return (
            f"Held-out errors need two tasks and one with at least {FEWEST_ROWS} rows; these rows "
            "have no such."
        )
    fold = _folds(rows.codes, large)
    scored = np.where(fold >= 0, rows.codes, T)

    def per_task(values: np.ndarray) -> np.ndarray:
        return np.bincount(scored, values, minlength=T + 1)[:T]

    held_rows = per_task(np.ones(len(scored)))
    mean = per_task(rows.y) / np.maximum(held_rows, 1)
    total = float(per_task((rows.y - mean[rows.codes]) ** 2).sum())
    if total <= STEADY * float(np.sum(rows.y**2)):
        return NOTHING_TO_PREDICT
    rivals = _rivals(model)
    labels = np.empty(T, dtype=object)
    labels[:] = model.tasks_.tolist() if model.tasks_.dtype != object else list(model.tasks_)
    error = {name: np.zeros(len(rows.y)) for name in rivals}
    notes: list[str] = []
    for i in range(N_FOLDS):
        held = fold == i
        for j, (name, make) in enumerate(rivals.items()):
            if tick is not None:
                tick("held-out errors", i * len(rivals) + j, N_FOLDS * len(rivals))
            task = labels[rows.codes] if name == "model" else rows.codes
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    fitted = make().fit(rows.X[~held], rows.y[~held], task=task[~held])
                    error[name][held] = rows.y[held] - fitted.predict(rows.X[held], task[held])
                except (ValueError, ArithmeticError, np.linalg.LinAlgError) as problem:
                    return f"Held-out errors could not be found: {problem}"
            if name == "model":
                notes += [" ".join(str(warning.message).split()) for warning in caught]
    return Gains(
        {name: per_task(values**2) for name, values in error.items()},
        held_rows.astype(np.int64),
        total,
        int(np.sum(~large & (size > 0))),
        tuple(notes),
    )


def _folds(codes: np.ndarray, large: np.ndarray) -> np.ndarray:
    """Fold of each row, -1 for rows of small tasks, which are always fitted."""
    rng = np.random.default_rng(0)
    shuffled = np.lexsort((rng.random(len(codes)), codes))
    size = np.bincount(codes)
    place = np.arange(len(codes)) - np.repeat(np.cumsum(size) - size, size)
    fold = np.empty(len(codes), dtype=np.int64)
    # Tasks begin with different folds, so that small ones do not all fill the same.
    fold[shuffled] = (place + codes[shuffled]) % N_FOLDS
    fold[~large[codes]] = -1
    return fold


def _rivals(model: TaskRegressor) -> dict[str, Callable[[], TaskRegressor]]:
    """How to make the model again with what it found, and the two baselines."""
    given = model.get_params(deep=False)
    found = {name: value for name, value in PLAIN.items() if name in given}
    if "random_state" in given:
        found["random_state"] = 0
    for name in ("penalty", "slopes"):
        if given.get(name) == "auto" and hasattr(model, f"{name}_"):
            found[name] = getattr(model, f"{name}_")
    if "rank" in given and getattr(model, "rank_", 0) >= 1:
        found["rank"] = model.rank_
    options = given.get("solver_options")
    if options:  # a callback is the user's, and was for the fit
        found["solver_options"] = {k: v for k, v in options.items() if k != "callback"}
    intercept = bool(model.fit_intercept)
    rivals: dict[str, Callable[[], TaskRegressor]] = {"model": lambda: type(model)(**given | found)}
    if not isinstance(model, PerTaskRegressor):
        rivals["separate"] = lambda: PerTaskRegressor(fit_intercept=intercept)
    if not isinstance(model, PooledRegressor):
        rivals["pooled"] = lambda: PooledRegressor(fit_intercept=intercept)
    return rivals
