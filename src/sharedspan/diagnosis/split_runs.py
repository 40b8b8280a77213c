"""Fits of methods to the same splits of a table, within a time limit.

The fits are made in this order: two splits of each method, one method after the other, and then
the other splits, each by all methods. A fit that runs is never interrupted: time is looked at
before a fit, and before a further split, which needs as much of it as the longest fits so far.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sharedspan.diagnosis.compared_methods import compile_kernels
from sharedspan.diagnosis.holdout_errors import (
    FEWEST_ROWS,
    N_FOLDS,
    fit_and_predict,
    folds_of_partition,
)
from sharedspan.diagnosis.losses import RMSE, Loss, loss_of, scores
from sharedspan.estimators.base import TaskEstimator
from sharedspan.families import Family, Gaussian
from sharedspan.progress import ProgressCallback

FEWEST_SPLITS = 2  # that a standard error needs
MOST_MEANS = 10_000  # predictions of a split by which methods are found to be equal
# Up to a full stop before a capital; one inside a quoted name of a column ends no sentence.
SENTENCE = re.compile(r"""(?:(?<!\w)(['"]).*?\1(?!\w)|[^.]|\.(?! [A-Z]))*""")

clock = time.monotonic


@dataclass
class Runs:
    """The test errors, times and messages of one method, split by split."""

    rmse: list[float] = field(default_factory=list)
    scores: list[dict[str, float]] = field(default_factory=list)  # of classes and counts
    seconds: list[float] = field(default_factory=list)
    error: str | None = None  # of an exception, which ends the runs of the method
    unconverged: list[str] = field(default_factory=list)
    n_stopped: int = 0  # fits of scikit-learn that ended before they converged
    warned: list[str] = field(default_factory=list)
    means: list[np.ndarray] = field(default_factory=list)  # some of the predictions of each split
    elapsed: list[float] = field(default_factory=list)  # seconds of fits with their predictions
    kind: Loss = RMSE
    task_losses: np.ndarray | None = None  # (T,) sums over all splits, without small tasks
    n_held: int = 0  # rows of all splits

    @property
    def loss(self) -> list[float]:
        """The losses by which methods are ranked: the first of the scores, or the RMSE."""
        return [next(iter(each.values())) for each in self.scores] or self.rmse

    @property
    def mean_loss(self) -> float:
        """The loss over the held-out rows of all splits."""
        assert self.task_losses is not None
        return self.kind.shown(float(self.task_losses.sum()) / self.n_held)

    @property
    def failure(self) -> str | None:
        """The reason why the method failed, or None."""
        if self.error is not None or not self.unconverged:
            return self.error
        return f"{self.unconverged[0]}, in {len(self.unconverged)} of {len(self.rmse)} splits"


@dataclass(frozen=True)
class SplitRows:
    """Rows that are split: features (n, d), responses (n,) and sorted codes of tasks (n,)."""

    X: np.ndarray
    y: np.ndarray
    codes: np.ndarray
    family: Family
    names: tuple[str, ...] = ()  # of the features, if they have some

    def held_out(self, seed: int, split: int) -> np.ndarray:
        """Whether a row is held out of a split, (n,): once in four splits.

        The first four splits of seed 0 are the folds of the report. Rows of small tasks are always
        fitted, and never held out.
        """
        partition, fold = divmod(split, N_FOLDS)
        size = np.bincount(self.codes)
        held = np.zeros(len(self.codes), dtype=bool)
        held[self.large[self.codes]] = folds_of_partition(size[self.large], seed, partition) == fold
        return held

    @property
    def large(self) -> np.ndarray:
        """Whether a task (T,) has the rows that a split needs."""
        return np.bincount(self.codes) >= FEWEST_ROWS


def run_splits(
    rows: SplitRows, methods: Sequence[str], make: Callable[[str], Any], *, repeats: int,
    seed: int, time_limit: float | None, first: Sequence[str], progress: ProgressCallback,
) -> dict[str, Runs]:  # fmt: skip
    """Fit methods, made by name and number of the split, to all splits that the limit allows.

    The second fit of a method in ``first`` starts while time is left, that of the others only if
    it needs no more time than is left.
    """
    end = math.inf if time_limit is None else clock() + time_limit
    runs, total = {name: Runs() for name in methods}, repeats * len(methods)

    def fit(name: str, split: int, done: int) -> None:
        progress(name, done, total)
        if split == 0:
            compile_kernels(name, rows.family)
        began = clock()
        add_fit(runs[name], make(name), rows, rows.held_out(seed, split))
        runs[name].elapsed.append(clock() - began)

    for i, name in enumerate(methods):
        for split in range(FEWEST_SPLITS):
            needed = 0.0 if name in first else max(runs[name].elapsed, default=0.0)
            if runs[name].error is None and clock() + needed < end:
                fit(name, split, FEWEST_SPLITS * i + split)
    for split in range(FEWEST_SPLITS, repeats):
        running = [name for name in methods if is_complete(runs[name])]
        if clock() + sum(max(runs[name].elapsed) for name in running) >= end:
            break
        for name in running:
            fit(name, split, split * len(methods) + methods.index(name))
    return runs


def is_complete(run: Runs) -> bool:
    """Whether a method has no error and the splits that a standard error needs."""
    return run.error is None and len(run.rmse) >= FEWEST_SPLITS


def add_fit(run: Runs, model: Any, rows: SplitRows, held: np.ndarray) -> None:
    """Fit once and add the error on the held-out rows, or the exception, to the runs."""
    name, y = type(model).__name__, rows.y[held]
    is_ours = isinstance(getattr(model, "model", model), TaskEstimator)
    names = rows.names if is_ours else ()
    try:
        means, seconds, caught = fit_and_predict(model, rows.X, rows.y, rows.codes, held, names)
        run.seconds.append(seconds)
        rmse = RMSE.of(y, means)
        if not math.isfinite(rmse):
            raise ArithmeticError("its predictions are not finite")
    except Exception as error:  # any exception: the other methods continue
        run.error = _first_sentence(error, name) or type(error).__name__
        return
    run.rmse.append(rmse)
    run.kind = loss_of(rows.family)
    losses = np.bincount(rows.codes[held], run.kind.of_rows(y, means), rows.codes[-1] + 1)
    losses = losses[rows.large]
    run.task_losses = losses if run.task_losses is None else run.task_losses + losses
    run.n_held += len(y)
    run.means.append(means[:: -(-len(means) // MOST_MEANS)].copy())
    if not isinstance(rows.family, Gaussian):
        run.scores.append(scores(rows.family, y, means))
    span = getattr(model, "fitted_span", None)  # scikit-learn's baselines have none
    converged = span is None or span.converged in (None, True)
    messages = {_first_sentence(w.message, name): w.category.__name__ for w in caught}
    reasons = [text for text, kind in messages.items() if kind == "ConvergenceWarning"]
    if not converged:
        run.unconverged.append(reasons[0] if reasons else "it did not converge")
    run.n_stopped += bool(reasons) and not is_ours
    run.warned += [text for text in messages if (converged and is_ours) or text not in reasons]


def _first_sentence(message: object, speaker: str) -> str:
    """The first sentence of a message, without its full stop and the name of the estimator."""
    match = SENTENCE.match(" ".join(str(message).split()).removeprefix(f"{speaker} "))
    return "" if match is None else match.group().rstrip(".")
