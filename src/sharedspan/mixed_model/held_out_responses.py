"""Leave-one-out predictions of responses that are not normal, to check the selected model.

With V_t the posterior covariance of a task's coefficients and h = z'V_t z, a row of working weight
w and working score l' has, once one repetition of it is left out, the linear predictor and variance

    eta - h l' / (1 - w h),     h / (1 - w h),

and the loss -2 log of the mean likelihood of its response.
"""

from __future__ import annotations

import numpy as np

from sharedspan.mixed_model.modes import FamilyRows
from sharedspan.mixed_model.outliers import FittedEffects
from sharedspan.mixed_model.posterior import map_posteriors
from sharedspan.mixed_model.search import SelectedModel

MOST_ROWS = 20_000  # rows whose losses are compared; more are sampled


class HeldOutResponses:
    """Rows of tasks that a covariance was selected on, each predicted from the others."""

    optimism = 2.0  # as in HeldOutRows; a noise variance is one here
    richer_lead = np.inf  # effects of large variance are far from normal, and look better here

    def __init__(self, rows: FamilyRows) -> None:
        counts = rows.rows.n_rows
        step = max(-(-counts // MOST_ROWS), 1)
        parts = list(rows.parts())
        owner = np.concatenate([part.owner + part.first for part in parts])
        pick = slice(None, None, step)
        self.owner, self.n_tasks = owner[pick], rows.n_tasks
        Z, y, weight, offset = (np.concatenate([part[i] for part in parts])[pick] for i in range(4))
        self.Z, self.y = np.ascontiguousarray(Z[:, : rows.p]), y
        self.weight, self.offset, self.repetitions = weight, offset, weight
        self.share = len(y) / counts
        self._losses: dict[int, tuple[SelectedModel, np.ndarray]] = {}

    def noise(self, losses: np.ndarray) -> float:
        """The loss that one more parameter hides."""
        return 1.0

    def squares(self, model: SelectedModel) -> np.ndarray:
        """Losses of the rows times the sample weights, (rows,)."""
        key = id(model.fit)
        if key not in self._losses:
            self._losses[key] = model, self._left_out(model)  # the model: ids are used once
        return self._losses[key][1]

    def _left_out(self, model: SelectedModel) -> np.ndarray:
        tasks, family = model.fit.modes.tasks, model.fit.modes.family
        eta, h = np.empty(len(self.y)), np.empty(len(self.y))

        def work(ids: np.ndarray, means: np.ndarray, V: np.ndarray, _: np.ndarray) -> None:
            rows = np.flatnonzero((self.owner >= ids[0]) & (self.owner <= ids[-1]))
            of = self.owner[rows] - ids[0]
            means = means + np.einsum("tij,tj->ti", V, tasks.working.linear[ids])
            eta[rows] = np.einsum("ij,ij->i", self.Z[rows], means[of])
            h[rows] = np.einsum("ij,ijk,ik->i", self.Z[rows], V[of], self.Z[rows], optimize=True)

        map_posteriors(work, tasks, FittedEffects(model.fit))
        eta += self.offset
        d = family.derivatives(self.y, eta)
        # One repetition of a row is left out, so that a weight of two is the row twice.
        rest = np.maximum(1 - d.weight * h, 1e-3)
        left_out = eta - h * d.first / rest
        loss = -2 * family.predictive_log_likelihood(self.y, left_out, h / rest)
        return self.weight * loss
