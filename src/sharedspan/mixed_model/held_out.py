"""Leave-one-out errors of rows, in closed form, to check a structure that the evidence selected.

With V_t the posterior covariance of a task's coefficients over the noise variance, a row (z, y) of
weight w that is predicted from all other rows, the variances being what they are, has the error

    (y - z'v_t) / (1 - w z'V_t z).

The marginal likelihood prefers directions that explain a noise level which differs between rows;
they do not help to predict rows that were left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sharedspan.inputs.rows import TaskRows
from sharedspan.mixed_model.likelihood import MixedTasks, TaskTerms
from sharedspan.mixed_model.optimize import CovarianceFit
from sharedspan.mixed_model.posterior import estimate_population, task_posteriors
from sharedspan.statistics.canonical import Canonical

MOST_ROWS = 50_000  # rows whose errors are compared; more are sampled
ENTRIES_AT_ONCE = 1 << 20
VETO = 4.0  # standard errors by which another structure must be better


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

    def __init__(
        self, rows: TaskRows, ids: np.ndarray, canonical: Canonical, tasks: MixedTasks
    ) -> None:
        self.tasks = tasks
        owner = np.full(rows.n_tasks, -1)
        owner[ids] = np.arange(len(ids))
        task_of = np.repeat(owner, np.diff(rows.starts))
        positions = np.flatnonzero(task_of >= 0)
        if len(positions) > MOST_ROWS:
            positions = positions[np.linspace(0, len(positions) - 1, MOST_ROWS).astype(int)]
        mask = np.zeros(rows.n_rows, dtype=bool)
        mask[positions] = True
        self.owner = task_of[positions]
        blocks = list(rows.select(mask).blocks())
        units, scaling = canonical.units, tasks.scaling
        X, y = zip(*(units.rows(block, canonical.P) for block in blocks), strict=True)
        Z = (np.concatenate(X) - scaling.centre) / scaling.scale
        self.Z = np.column_stack([np.ones(len(Z)), Z]) if tasks.intercept else Z
        self.y = (np.concatenate(y) - scaling.y_centre) / scaling.y_scale
        self.weight = np.concatenate([block.weight for block in blocks])

    def squares(self, fit: CovarianceFit) -> np.ndarray:
        """Weighted squares of the leave-one-out errors, (rows,)."""
        tasks, C = self.tasks, fit.covariance
        population = estimate_population(tasks, fit, np.zeros(tasks.n_tasks))
        leverage, fitted = np.empty(len(self.y)), np.empty(len(self.y))
        order = np.argsort(self.owner, kind="stable")
        sorted_owner = self.owner[order]

        def work(terms: TaskTerms) -> None:
            scores, _ = terms.scores_and_squares(population.b)
            means, V, _ = task_posteriors(C.matrix, terms.K, scores, population)
            for i, t in enumerate(terms.ids):
                begin, end = np.searchsorted(sorted_owner, (t, t + 1))
                at = order[begin:end]
                Z = self.Z[at]
                fitted[at] = Z @ means[i]
                leverage[at] = np.einsum("ij,ij->i", Z @ V[i], Z)

        tasks.map_terms(work, C)
        rest = np.maximum(1 - self.weight * leverage, 1e-3)
        return self.weight * ((self.y - fitted) / rest) ** 2


def veto(
    rows: HeldOutRows, selected: CovarianceFit, rivals: Sequence[CovarianceFit]
) -> CovarianceFit:
    """The selected fit, or a rival whose errors of left out rows are significantly smaller."""
    squares, best, lead = rows.squares(selected), selected, VETO
    for rival in rivals:
        gap = squares - rows.squares(rival)
        by_task = np.bincount(rows.owner, gap, minlength=rows.tasks.n_tasks)
        error = max(_error_of_sum(gap), _error_of_sum(by_task))
        if gap.sum() > lead * error:
            best, lead = rival, gap.sum() / error
    return best


def _error_of_sum(values: np.ndarray) -> float:
    return max(math.sqrt(len(values)) * float(values.std()), 1e-300)
