"""What ARMUL and penalised ERM share: noise, the start and the store of fits near a span."""

from __future__ import annotations

import numbers
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sharedspan.estimators.base import at_least
from sharedspan.estimators.span import Problem, SpanRegressor
from sharedspan.estimators.sums import SumsRegressor
from sharedspan.objective.base import Objective
from sharedspan.solvers.loop import run
from sharedspan.solvers.proximal import Descent
from sharedspan.solvers.scaled import scaled_gd


class NearSpanRegressor(SpanRegressor, SumsRegressor):
    """What ARMUL and pERM share: noise level, start, and the way back from a descent."""

    max_iter: int
    tol: float

    def _noise_level(self, objective: Objective, separate: np.ndarray, k: int) -> float:
        """Standard deviation of the noise, in the units of the statistics.

        From the residuals of separate least squares, which outlier tasks do not disturb; where
        tasks have no rows to spare for that, from a joint fit of rank k.
        """
        spare = np.maximum(objective.n - objective.n_features - self.fit_intercept, 0.0)
        if spare.sum() < objective.n_tasks:
            joint = run(scaled_gd(objective, k), objective, max_iter=self.max_iter, tol=1e-4)
            return float(np.sqrt(self._shared_noise(objective, joint.B, joint.W, k)[0]))
        _, losses = objective.residuals(separate.copy())
        squares = 2 * losses * objective.n / objective.response**2
        return float(np.sqrt(squares[spare > 0].sum() / spare.sum()))

    def _store_descent(
        self,
        problem: Problem,
        objective: Objective,
        descent: Descent,
        V: np.ndarray,
        rank: int,
        sigma: float,
    ) -> None:
        """The span of the descent, and coefficients V (d, T)."""
        B, W, _ = descent.place.parts
        self._store_span(problem, objective.response, B, W, rank, off_span=V - B @ W)
        unit = problem.canonical.units.y_scale
        self.noise_variance_ = np.full(objective.n_tasks, (sigma / unit) ** 2)
        self.n_iter_, self.converged_ = len(descent.trace) - 1, descent.converged
        scale = 2 / objective.n_tasks / unit**2
        self.trace_ = {
            "iteration": np.arange(len(descent.trace)),
            "objective": scale * descent.trace,
        }
        if not descent.converged and self.tol > 0:
            warnings.warn(
                f"{type(self).__name__} did not converge in {self.n_iter_} iterations. The last "
                "iterate is kept. Raise max_iter, or lower the rank.",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _validate_parameters(self) -> None:
        super()._validate_parameters()
        at_least("max_iter", self.max_iter, 1, numbers.Integral)
        at_least("tol", self.tol, 0.0)
