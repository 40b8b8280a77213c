"""Leave-one-out errors of rows, in closed form, to check the model that the evidence selected.

With V_t the posterior covariance of a task's coefficients over the noise variance, a row (z, y) of
weight w that is predicted from all other rows, with the variances unchanged, has the error

    (y - z'v_t) / (1 - w z'V_t z).

A weight counts repetitions of the row. Only one of them is left out, as it would be if they were
written as rows: w is at most one here, and the error counts w times.

The marginal likelihood prefers directions that explain a noise level which differs between rows;
they do not help to predict rows that were left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from sharedspan.inputs.rows import TaskRows
from sharedspan.kernels.cpu import quadratic_forms
from sharedspan.mixed_model.likelihood import MixedTasks, RowVariances
from sharedspan.mixed_model.posterior import map_posteriors
from sharedspan.mixed_model.search import SelectedModel
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.grams import GramStatistics
from sharedspan.statistics.task_statistics import collect

MOST_ROWS = 20_000  # rows whose errors are compared; more are sampled
LEAD = 1.0  # standard errors by which a simpler model, or one of other noise, must predict better
HOPELESS = 5.0  # standard errors: what predicts so much worse is not fitted again with other noise
TIE = 3.0  # in evidence: a simpler fit that has less by no more need only predict as well
WIDENINGS = (3.0, 10.0, 30.0, 100.0)  # factors on the covariance that are tried
RICHER_LEAD = 3.0  # the same for a covariance of more parameters than the evidence asked for


class HeldOutRows:
    """Rows in standard units, of tasks that a covariance was selected on.

    Parameters
    ----------
    rows : TaskRows
        The rows of all tasks.
    ids : ndarray of shape (m,)
        The tasks among them that were searched, in order.
    canonical : Canonical
    tasks : MixedTasks
        The searched tasks.
    """

    # The left out rows took part in fitting the covariance. That makes the squares smaller by about
    # two noise variances for each of its parameters.
    optimism = 2.0
    richer_lead = RICHER_LEAD

    def __init__(
        self, rows: TaskRows, ids: np.ndarray, canonical: Canonical, tasks: MixedTasks
    ) -> None:
        owner = np.full(rows.n_tasks, -1)
        owner[ids] = np.arange(len(ids))
        task_of = np.repeat(owner, np.diff(rows.starts))
        positions = np.flatnonzero(task_of >= 0)
        if len(positions) > MOST_ROWS:
            positions = positions[np.linspace(0, len(positions) - 1, MOST_ROWS).astype(int)]
        mask = np.zeros(rows.n_rows, dtype=bool)
        mask[positions] = True
        self.rows, self.ids, self.canonical, self.tasks = rows, ids, canonical, tasks
        self.positions, self.owner = positions, task_of[positions]
        blocks = list(rows.select(mask).blocks())
        units, scaling = canonical.units, tasks.scaling
        X, y = zip(*(units.rows(block, canonical.P) for block in blocks), strict=True)
        self.Z = scaling.to_standard(np.concatenate(X), tasks.intercept)
        self.y = (np.concatenate(y) - scaling.y_centre) / scaling.y_scale
        self.weight = np.concatenate([block.weight for block in blocks])
        self.repetitions = self.weight
        self._squares: dict[tuple[int, int, float], tuple[SelectedModel, np.ndarray]] = {}
        self.n_tasks = len(ids)
        self.share = len(positions) / int(np.sum(task_of >= 0))  # of the rows of these tasks

    def tasks_of(self, rows: TaskRows, variances: RowVariances | None = None) -> MixedTasks:
        """All tasks, from some of their rows or from rows of other weights."""
        kind = "gram" if isinstance(self.tasks.statistics, GramStatistics) else "rows"
        statistics = collect(rows, self.canonical.units, self.tasks.intercept, kind)
        if self.canonical.P is not None:
            statistics.transform(self.canonical.P)
        options = variances, self.tasks.restricted, self.tasks.coefficients
        return MixedTasks(statistics, self.tasks.scaling, None, *options)

    def noise(self, squares: np.ndarray) -> float:
        """The mean square of the errors."""
        return float(squares.sum() / self.weight.sum())

    def squares(self, model: SelectedModel) -> np.ndarray:
        """Squares of the leave-one-out errors times the sample weights, (rows,)."""
        key = id(model.fit), id(model.tasks), model.widening
        if key not in self._squares:
            fitted, leverage = self.fitted(model)
            of_one = leverage / np.maximum(self.weight, 1.0)
            errors = (self.y - fitted) / np.maximum(1 - of_one, 1e-10)
            self._squares[key] = model, self.weight * errors**2  # the model: ids are used once
        return self._squares[key][1]

    def fitted(self, model: SelectedModel) -> tuple[np.ndarray, np.ndarray]:
        """Fitted values, and leverages w z'V_t z, both (rows,)."""
        tasks, levels = model.tasks, model.tasks.levels
        leverage, fitted = np.empty(len(self.y)), np.empty(len(self.y))

        def work(ids: np.ndarray, means: np.ndarray, V: np.ndarray, _: np.ndarray) -> None:
            place = np.full(tasks.n_tasks, -1)
            place[ids] = np.arange(len(ids))
            rows = np.flatnonzero(place[self.owner] >= 0)
            Z, of = self.Z[rows], place[self.owner[rows]]
            fitted[rows] = np.einsum("ij,ij->i", Z, means[of])
            own = np.empty(len(rows))
            quadratic_forms(Z, np.ascontiguousarray(V), of, own)
            leverage[rows] = own / levels[self.owner[rows]]

        map_posteriors(work, tasks, model)
        if model.row_noise is not None:
            leverage /= model.row_noise.relative[self.positions]
        return fitted, self.weight * leverage


class RowErrors(Protocol):
    """Errors of rows that a model predicts from other rows."""

    owner: np.ndarray  # (rows,) the task of each row
    n_tasks: int
    share: float  # of the rows of these tasks
    optimism: float
    richer_lead: float  # standard errors by which a richer covariance must predict better
    repetitions: Any  # (rows,) or one number: of each row, whose errors count one by one

    def noise(self, squares: np.ndarray) -> float:
        """The noise variance."""
        ...

    def squares(self, model: SelectedModel) -> np.ndarray:
        """Squares of the errors times the sample weights, (rows,)."""
        ...


def select_by_rows(rows: RowErrors, models: Sequence[SelectedModel]) -> SelectedModel:
    """The first model, unless another one predicts rows that were left out significantly better.

    All fits that were compared with any of the models take part.
    """
    first = best = models[0]
    squares = rows.squares(first)
    lead = 0.0
    for rival in (each for model in models for each in (model, *map(model.with_fit, model.rivals))):
        gain = _gain(rows, squares, first, rival, _required_lead(rows, first, rival))
        if gain > lead:
            best, lead = rival, gain
    if best.fit.modes is not None:  # modes depend on the covariance
        return best
    selected, squares, lead = best, rows.squares(best), 0.0
    for rival in (replace(selected, widening=factor) for factor in WIDENINGS):
        gain = _gain(rows, squares, selected, rival, LEAD)
        if gain > lead:
            best, lead = rival, gain
    return best


def without_hopeless_rivals(rows: RowErrors, model: SelectedModel) -> SelectedModel:
    """The model less the rivals that predict far worse than another one does."""
    fits = (model.fit, *model.rivals)
    squares = [rows.squares(model.with_fit(fit)) for fit in fits]
    best = min(squares, key=np.sum)
    near = [fit for fit, each in zip(fits, squares, strict=True)
            if (each - best).sum() <= HOPELESS * _standard_error(rows, each - best)]  # fmt: skip
    return replace(model, rivals=tuple(fit for fit in near if fit is not model.fit))


def _required_lead(rows: RowErrors, first: SelectedModel, rival: SelectedModel) -> float:
    """Standard errors by which a rival must predict better than the model of the best evidence."""
    if rival.tasks is not first.tasks:
        return LEAD
    if rival.fit.penalty > first.fit.penalty:
        return rows.richer_lead
    return 0.0 if first.fit.score - rival.fit.score < TIE else LEAD


def _gain(
    rows: RowErrors, squares: np.ndarray, model: SelectedModel, rival: SelectedModel, lead: float
) -> float:
    """The sum by which a rival's squares are smaller, zero unless by so many standard errors."""
    gap = squares - rows.squares(rival)
    price = 0.5 * math.log(max(rows.n_tasks, 2))
    parameters = (rival.fit.penalty - model.fit.penalty) / price
    gain = float(gap.sum()) - rows.optimism * parameters * rows.noise(squares) * rows.share
    return gain if gain > lead * _standard_error(rows, gap) else 0.0


def _standard_error(rows: RowErrors, gap: np.ndarray) -> float:
    """Of the sum of differences (rows,): the larger of two, from rows and from tasks."""
    by_task = np.bincount(rows.owner, gap, minlength=rows.n_tasks)
    of_one = gap / rows.repetitions
    middle = np.sum(gap) / np.sum(np.broadcast_to(rows.repetitions, gap.shape))
    by_row = math.sqrt(float(np.sum(rows.repetitions * (of_one - middle) ** 2)))
    return max(by_row, math.sqrt(len(by_task)) * float(by_task.std()))
