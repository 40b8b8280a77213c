"""Generalised mixed models by Laplace's approximation: reweighted rows, turn by turn.

A turn reads the rows once and finds the modes of all tasks (``modes.py``); the covariance of the
effects is then optimised, or its structure selected, on the quadratics around these modes by the
code of the Gaussian model. Their linear terms make the fixed point the maximum of Laplace's
approximation of the marginal likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sharedspan.families import Family, NegativeBinomial
from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.modes import FamilyRows, Turn
from sharedspan.mixed_model.optimize import CovarianceFit, CovarianceOptimizer
from sharedspan.mixed_model.search import SelectedModel
from sharedspan.mixed_model.terms import Covariance

MOST_TURNS = 60
MOST_SELECTIONS = 4  # of a structure
POOLED_STEPS = 40
FIRST_TAU = 1.0  # prior variance of the slopes of b in the pooled fit
SMALLEST_DISPERSION, LARGEST_DISPERSION = 1e-3, 1e6

Select = Callable[[MixedTasks], SelectedModel]


@dataclass(frozen=True)
class FamilyFit:
    """A selected model whose modes have converged."""

    model: SelectedModel  # of all tasks, at their modes
    family: Family  # with its dispersion
    n_turns: int
    converged: bool


class LaplaceFit:
    """The turns of a fit.

    Parameters
    ----------
    rows : FamilyRows
    flat : bool
        Maximum likelihood, with no prior on b nor on D.
    restricted : bool
        Whether b is integrated out although its prior is flat.
    """

    def __init__(self, rows: FamilyRows, flat: bool, restricted: bool = False) -> None:
        self.rows, self.flat, self.restricted = rows, flat, restricted
        self.integrated = restricted or not flat
        self.n_turns = 0
        self.tol = 1e-7 if flat else 1e-3
        rows.centre()
        p = rows.p
        self.b, self.scores = np.zeros(p), np.zeros((rows.n_tasks, p))
        self.covariance = Covariance(np.zeros(p), np.zeros((p, 0)))
        self.b_covariance: np.ndarray | None = None
        self.tau = math.inf if flat else FIRST_TAU

    def turn(self, with_b: bool = True) -> MixedTasks:
        """Read the rows at the current parameters: the tasks at their modes.

        ``with_b`` takes the error of b into account if it is integrated out.
        """
        self.n_turns += 1
        b_covariance = self.b_covariance if with_b and self.integrated else None
        turn = self.rows.turn(self.b, self.covariance, self.scores, b_covariance)
        self.scores = turn.scores
        self._update_dispersion(turn)
        return MixedTasks(turn.statistics, self.rows.scaling, restricted=self.restricted)

    def _update_dispersion(self, turn: Turn) -> None:
        """One step of Newton's method for the log of the dispersion, of bounded length."""
        family = self.rows.family
        if not isinstance(family, NegativeBinomial):
            return
        slope, curvature = turn.dispersion
        self.dispersion_gain = slope**2 / max(abs(curvature), 1e-12) / 2
        step = slope / max(-curvature, 0.1 * abs(slope), 1e-12)
        log_dispersion = math.log(family.dispersion) + min(max(step, -2.0), 2.0)
        low, high = math.log(SMALLEST_DISPERSION), math.log(LARGEST_DISPERSION)
        dispersion = math.exp(min(max(log_dispersion, low), high))
        self.rows = self.rows.with_family(family.with_dispersion(dispersion))

    def pooled(self) -> MixedTasks:
        """The fit without effects of tasks, by Newton's method with step halving."""
        best, at = -math.inf, self.b
        for _ in range(POOLED_STEPS):
            tasks = self.turn(with_b=False)
            assert tasks.working is not None
            precision = tasks.slope_precision(self.tau)
            value = float(tasks.working.value.sum() - 0.5 * self.b @ (precision * self.b))
            if value < best - 1e-9 * abs(best) and not self._has_dispersion:
                self.b = 0.5 * (self.b + at)
                continue
            evidence = tasks.evaluate(self.covariance, precision, integrated=False)
            step, at = evidence.mean - self.b, self.b
            self.b, self.b_covariance = evidence.mean, evidence.mean_covariance
            gain = 0.5 * float(step @ (evidence.total + np.diag(precision)) @ step)
            best = value
            if gain < self.tol:
                break
        return self.turn()

    @property
    def _has_dispersion(self) -> bool:
        return isinstance(self.rows.family, NegativeBinomial)

    def use(self, fit: CovarianceFit, tasks: MixedTasks) -> None:
        """Take over the parameters of a fit to these tasks, or to some of them."""
        e = fit.evidence
        self.covariance, self.b, self.b_covariance = fit.covariance, e.mean, e.mean_covariance
        self.tau = fit.tau
        scores = e.scores
        if len(scores) < tasks.n_tasks:
            _, scores, _ = tasks.task_values(fit.covariance, e.mean, 1.0)
        self.scores = scores

    def converge(self, model: SelectedModel) -> tuple[SelectedModel, bool]:
        """Turns with one structure and rank, until the objective gains no more."""
        fit = model.fit
        columns = fit.covariance.loadings.shape[1]
        for _ in range(MOST_TURNS):
            tasks = self.turn()
            optimizer = CovarianceOptimizer(tasks, self.flat)
            start = optimizer.fit(fit.structure, columns, fit, steps=0)
            new = optimizer.fit(fit.structure, columns, fit, tol=self.tol / 10)
            self.use(new, tasks)
            gain = new.value - start.value
            if self._has_dispersion:
                gain += self.dispersion_gain
            fit = new
            if gain < self.tol:
                break
        return replace(model, tasks=tasks, fit=fit, rivals=()), gain < self.tol


def fit_family(rows: FamilyRows, select: Select, flat: bool, restricted: bool) -> FamilyFit:
    """The structure of the best evidence, selected again at the modes until it stays the same.

    Parameters
    ----------
    rows : FamilyRows
    select : callable of MixedTasks
        Selects a model on tasks at their modes.
    flat, restricted : bool
        See ``LaplaceFit``.
    """
    laplace = LaplaceFit(rows, flat, restricted)
    tasks = laplace.pooled()
    seen: list[tuple[str, int]] = []
    best: FamilyFit | None = None
    for _ in range(MOST_SELECTIONS):
        model = select(tasks)
        key = model.fit.structure, model.fit.rank
        if key in seen:
            break
        seen.append(key)
        laplace.use(model.fit, tasks)
        model, converged = laplace.converge(model)
        tasks = model.tasks
        reached = FamilyFit(model, laplace.rows.family, laplace.n_turns, converged)
        if best is None or model.fit.score > best.model.fit.score:
            best = reached
    assert best is not None
    return replace(best, n_turns=laplace.n_turns)
