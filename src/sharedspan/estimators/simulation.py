"""Responses simulated from a fitted mixed model, as simulate() in R does it.

    y_t = Z_t (b + u_t) + noise,     u_t ~ N(0, s2 C),

with b, C and s2 as fitted. Every simulation has new effects of all tasks and new noise, so that
the simulated rows have the mean Z b and the covariance of the model, Z s2 C Z' + s2 I. Levels of a
further grouping, which are coefficients of b with a variance in common, get new effects too; a
spline, whose coefficients have one as well, is a curve of all tasks and stays as fitted. Of groups
within groups, both levels have new effects.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sharedspan.estimators.parameters import at_least
from sharedspan.estimators.simulation_rows import (
    TasksToSimulate,
    checked_weight,
    fit_with_rows,
    other_rows,
    rows_of_fit,
    small_blocks,
)
from sharedspan.families import Binomial, NegativeBinomial
from sharedspan.inputs.formula_encoding import NUMBERS_OF, FormulaEncoding
from sharedspan.mixed_model.design_rows import (
    DesignBlock,
    in_given_order,
    noise_unit,
    predictor_to_user,
)
from sharedspan.mixed_model.retained import RetainedFit

NUMBERS_TOGETHER = 1 << 20  # simulated responses of a block of rows
LARGEST_MEAN = 1e15  # of a simulated count


def simulate_responses(
    model: Any,
    n: int,
    rng: np.random.Generator,
    X: Any = None,
    task: Any = None,
    conditional: bool = False,
    offset: Any = None,
) -> np.ndarray:
    """Responses of the rows of the fit, or of others, in n simulations; see MixedModel.simulate.

    Rows of the fit with weight zero are not a number. The offset, in addition to that of a formula,
    is needed if the fit had one, unless it is retained.
    """
    at_least("n_simulations", n, 1, numbers.Integral)
    retained = fit_with_rows(model)
    if X is None:
        if task is not None:
            raise ValueError(
                "task was given, but X is None: give X too, or leave task out to simulate the rows "
                "of the fit."
            )
        rows = rows_of_fit(model, retained, offset)
    else:
        rows = other_rows(model, retained, X, task, offset)
    effects = _draw_effects(model, retained, rows.tasks, n, rng, conditional)
    noise = _noise_variances(retained, rows.tasks.known)
    out = np.empty((rows.n_rows, n))
    for block in small_blocks(rows.blocks, max(NUMBERS_TOGETHER // n, 1)):
        eta = predictor_to_user(retained, effects.linear_predictors(block))
        eta += block.offset[:, None]
        out[block.positions] = _draw_responses(model, eta, block.weight, noise[block.owner], rng)
    return in_given_order(retained, out) if X is None else out


@dataclass(frozen=True)
class _Effects:
    """Coefficients of all tasks in all simulations, in standard units."""

    centre: np.ndarray  # (tasks, p) the same in all simulations
    at: np.ndarray  # (l,) coefficients of b that are effects of a further grouping
    change: np.ndarray  # (n, l) of these
    root: np.ndarray  # (p, q) of the covariance of the effects, of one level or of two
    z: np.ndarray  # (n, tasks, q) effects, along the columns of the root

    def linear_predictors(self, block: DesignBlock) -> np.ndarray:
        """Linear predictors of a block of rows, (rows, n)."""
        eta = np.empty((len(block.owner), len(self.z)))
        eta[:] = np.einsum("rp,rp->r", block.Z, self.centre[block.owner])[:, None]
        if len(self.at):
            eta += block.Z[:, self.at] @ self.change.T
        along = block.Z @ self.root
        for i, z in enumerate(self.z):
            eta[:, i] += np.einsum("rq,rq->r", along, z[block.owner])
        return eta


def _draw_effects(
    model: Any, retained: RetainedFit, tasks: TasksToSimulate, n: int, rng: np.random.Generator,
    conditional: bool,
) -> _Effects:  # fmt: skip
    """New effects, or with ``conditional`` only of tasks that were not fitted."""
    fit, posterior = _FittedVariances.of(retained), model._uncertainty_
    std, known, known_outer = np.sqrt(fit.noise), tasks.known, tasks.known_outer
    at = np.zeros(0, dtype=int) if conditional else _random_levels(model, retained)
    deviation = std / np.sqrt(retained.tasks.prior_precision(fit.taus)[at])
    change = deviation * rng.standard_normal((n, len(at))) - posterior.b[at]
    z = std * rng.standard_normal((n, len(known), fit.root.shape[1]))
    outer_z = std * rng.standard_normal((n, len(known_outer), fit.outer_root.shape[1]))
    centre = np.repeat(posterior.b[None], len(known), axis=0)
    if conditional:
        # Entries of the posterior beyond the tasks are means of outer groups.
        group = known_outer[tasks.parent]
        centre[group >= 0] = posterior.mean[retained.tasks.n_tasks + group[group >= 0]]
        centre[known >= 0] = posterior.mean[known[known >= 0]]
        z[:, known >= 0], outer_z[:, known_outer >= 0] = 0.0, 0.0
    z = np.concatenate([z, outer_z[:, tasks.parent]], axis=2)
    return _Effects(centre, at, change, np.hstack([fit.root, fit.outer_root]), z)


class _FittedVariances(NamedTuple):
    """Variances of a fit with one level of groups or two, in standard units."""

    noise: float
    taus: np.ndarray  # (m,) prior variances of b's slopes and groups, over the noise
    root: np.ndarray  # (p, q) of the covariance of the tasks' effects, over the noise
    outer_root: np.ndarray  # (p, r) of that of the outer groups' effects

    @classmethod
    def of(cls, retained: RetainedFit) -> _FittedVariances:
        if retained.nested is not None:
            nested = retained.nested.fit
            return cls(nested.noise, nested.taus, nested.inner.root, nested.outer.root)
        fit = retained.fit
        assert fit is not None
        R = fit.covariance.root
        return cls(fit.evidence.noise, fit.taus, R, np.zeros((len(R), 0)))


def _noise_variances(retained: RetainedFit, known: np.ndarray) -> np.ndarray:
    """Noise variances in the user's units of tasks (tasks,), -1 for those that were not fitted."""
    tasks, s2 = retained.tasks, _FittedVariances.of(retained).noise
    mean_level = float(tasks.n @ tasks.levels / tasks.n.sum())
    levels = np.where(known < 0, mean_level, tasks.levels[known])
    return np.asarray(s2 * noise_unit(retained) ** 2 * levels)


def _random_levels(model: Any, retained: RetainedFit) -> np.ndarray:
    """Coefficients of b that are effects of the levels of a further grouping."""
    learned = vars(model).get("columns_")
    if learned is None or not isinstance(learned.encoding, FormulaEncoding):
        return np.zeros(0, dtype=int)
    first, groups = int(retained.tasks.intercept), retained.tasks.coefficients.groups
    features = learned.encoding.features
    is_level = [any(piece.coding != NUMBERS_OF for piece in feature) for feature in features]
    return first + np.flatnonzero((groups[first:] >= 0) & np.array(is_level, dtype=bool))


def _draw_responses(
    model: Any, eta: np.ndarray, weight: np.ndarray, variance: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:  # fmt: skip
    """Responses at linear predictors (rows, n) of rows with weights and noise variances (rows,)."""
    family = model.response_family()
    weight = checked_weight(model, weight)
    if not family.reweighted:
        std = np.sqrt(variance / weight)
        return np.asarray(eta + std[:, None] * rng.standard_normal(eta.shape))
    mean = family.mean(eta)
    if isinstance(family, Binomial):
        trials = weight.astype(np.int64)[:, None]
        return np.asarray(rng.binomial(trials, mean) / trials)
    if isinstance(family, NegativeBinomial):
        mean = mean * rng.standard_gamma(family.dispersion, mean.shape) / family.dispersion
    return rng.poisson(np.minimum(mean, LARGEST_MEAN)).astype(float)
