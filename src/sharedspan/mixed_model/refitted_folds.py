"""Errors of rows that were left out of a fit, for tables of few rows.

Leave-one-out errors in closed form take the covariance as known. That flatters one of nearly as
many parameters as there are rows; so each covariance is fitted again without a fifth of the rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sharedspan.inputs.rows import TaskRows
from sharedspan.mixed_model.held_out import RICHER_LEAD, HeldOutRows
from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.optimize import CovarianceFit, CovarianceOptimizer
from sharedspan.mixed_model.posterior import posterior_means
from sharedspan.mixed_model.search import (
    COMPARISON_TOL,
    SelectedModel,
    moment_covariance,
    truncated,
)
from sharedspan.mixed_model.structures import n_parameters

N_FOLDS = 5
FEWEST_ROWS = 10  # for each parameter of a covariance, to take it as known
FEWEST_FOR_DIRECTIONS = 40  # the same for directions, once these are selected
LARGEST_GAP = 20.0  # in evidence, of richer fits that left out rows may prefer
MOST_WORK = 3e6  # T p^3 of tables whose fits are repeated


def contenders(model: SelectedModel) -> tuple[CovarianceFit, ...]:
    """The fit of the best evidence, simpler ones, and richer ones that are not far behind."""
    best = model.fit
    return tuple(
        fit for fit in (best, *model.rivals)
        if fit.penalty <= best.penalty or fit.score > best.score - LARGEST_GAP
    )  # fmt: skip


def rows_are_few(model: SelectedModel) -> bool:
    """Whether a contender has too many parameters to be taken as known, and fits are cheap."""
    largest = max(covariance_parameters(model, fit) for fit in contenders(model))
    return is_cheap(model) and float(model.tasks.n.sum()) < FEWEST_ROWS * largest


def covariance_parameters(model: SelectedModel, fit: CovarianceFit) -> int:
    """Free numbers of L, which has entries for the coefficients that may vary along directions."""
    directed = int(model.tasks.coefficients.directed.sum())
    return n_parameters(directed, fit.covariance.loadings.shape[1])


def is_cheap(model: SelectedModel) -> bool:
    """Whether fits may be repeated."""
    return model.tasks.n_tasks * float(model.tasks.p) ** 3 <= MOST_WORK


def must_trust_evidence(model: SelectedModel) -> bool:
    """Whether rows are too few to take the directions as known, and refits too costly to tell."""
    largest = max(covariance_parameters(model, fit) for fit in (model.fit, *model.rivals))
    return not is_cheap(model) and float(model.tasks.n.sum()) < FEWEST_FOR_DIRECTIONS * largest


def directions_in_doubt(model: SelectedModel) -> SelectedModel | None:
    """A model with directions that took many of the rows, beside the fits of lower rank.

    None if its rows suffice, or if the noise of its rows depends on their fitted values.
    """
    lower = tuple(fit for fit in model.rivals if fit.rank < model.fit.rank)
    rows = float(model.tasks.n.sum())
    if not lower or model.row_noise is not None or not is_cheap(model):
        return None
    if rows >= FEWEST_FOR_DIRECTIONS * covariance_parameters(model, model.fit):
        return None
    return replace(model, rivals=lower)


class RefittedFolds:
    """The rows of all tasks in folds, each predicted by fits to the others.

    The folds do not depend on the order of rows, and equal rows of a task, which might be one row
    with a larger weight, are in one fold.
    """

    optimism = 0.0
    richer_lead = RICHER_LEAD
    share = 1.0

    def __init__(self, held_out: HeldOutRows) -> None:
        self.rows, self.owner, self.n_tasks = held_out, held_out.owner, held_out.n_tasks
        self.repetitions = held_out.repetitions
        keys = np.column_stack([held_out.Z, held_out.y, held_out.owner])
        order = np.lexsort(keys.T)
        new = np.any(np.diff(keys[order], axis=0) != 0, axis=1)
        fold = np.empty(len(order), dtype=int)
        fold[order] = np.concatenate([[0], np.cumsum(new)]) % N_FOLDS
        self.folds = [np.flatnonzero(fold == i) for i in range(min(N_FOLDS, fold.max() + 1))]
        self.tasks = [self._without(each) for each in self.folds]
        self._fits: dict[tuple[int, int], list[CovarianceFit]] = {}

    def _without(self, fold: np.ndarray) -> MixedTasks:
        rows: TaskRows = self.rows.rows
        mask = np.ones(rows.n_rows, dtype=bool)
        mask[self.rows.positions[fold]] = False
        return self.rows.tasks_of(rows.select(mask))

    def noise(self, squares: np.ndarray) -> float:
        """See HeldOutRows."""
        return self.rows.noise(squares)

    def squares(self, model: SelectedModel) -> np.ndarray:
        """Squares of the errors of all rows times the sample weights, (rows,)."""
        key = id(model.fit), id(model.tasks)  # both live as long as the models are compared
        if key not in self._fits:
            self._fits[key] = [self._fitted(model, tasks) for tasks in self.tasks]
        predicted = np.empty(len(self.owner))
        for fold, tasks, fit in zip(self.folds, self.tasks, self._fits[key], strict=True):
            tasks = tasks.with_noise(model.tasks.levels)
            means, _ = posterior_means(tasks, replace(model, fit=fit))
            predicted[fold] = np.einsum("ij,ij->i", self.rows.Z[fold], means[self.owner[fold]])
        return self.rows.weight * (self.rows.y - predicted) ** 2

    def _fitted(self, model: SelectedModel, tasks: MixedTasks) -> CovarianceFit:
        weight = None if model.outliers is None else 1 - model.outliers.probability
        optimizer = CovarianceOptimizer(tasks.with_noise(model.tasks.levels), model.flat, weight)
        structure, columns = model.fit.structure, model.fit.covariance.loadings.shape[1]
        start = model.fit
        if model.fit.rank:
            # The directions of the fit to all rows know those that are left out.
            base = optimizer.fit(structure, 0, tol=COMPARISON_TOL)
            start = truncated(optimizer, base, moment_covariance(optimizer, base), columns)
        return optimizer.fit(structure, columns, start, tol=COMPARISON_TOL)
