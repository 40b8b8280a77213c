"""The objective of a mixed model with one level of tasks, such as ``y ~ x + (1 + x | school)``.

Coefficients in the user's units are A v + shift with v those in standard units, where a block of
effects with the factor F has C = LL', L = A^-1 F / s. With s2 given, and not at its best value,

    -2 log L = N log(2 pi s2) + all squares / s2 + determinants,

so ``MixedTasks.evaluate``, which profiles s2, returns all that is needed at any other one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sharedspan.mixed_model.likelihood import MixedTasks, inverse_precision
from sharedspan.mixed_model.objective import (
    EffectNames,
    Evaluation,
    MixedObjective,
    VarianceComponent,
    free_entries,
    map_to_user,
    triangular_factor,
)
from sharedspan.mixed_model.optimize import LOWEST, CovarianceFit
from sharedspan.mixed_model.terms import Covariance
from sharedspan.statistics.canonical import Canonical

SMALLEST_TAU = math.exp(LOWEST)  # a prior variance of b over the noise that counts as zero


class OneLevelObjective(MixedObjective):
    """The likelihood of a fit and of any other variances.

    Parameters
    ----------
    tasks : MixedTasks
        With the blocks of a formula in ``tasks.coefficients``.
    fit : CovarianceFit
        Of these blocks, by maximum or restricted likelihood.
    canonical : Canonical
        The way back to the user's units.
    names : EffectNames
    """

    def __init__(
        self, tasks: MixedTasks, fit: CovarianceFit, canonical: Canonical, names: EffectNames
    ) -> None:
        coefficients = tasks.coefficients
        self.restricted, self.n_rows = tasks.restricted, round(float(tasks.n.sum()))
        self.names = names
        self._unit = tasks.scaling.y_scale / canonical.units.y_scale
        self._to_user, self._shift = map_to_user(tasks.scaling, canonical, tasks.p)
        self._to_standard = np.linalg.inv(self._to_user)
        self._flat = coefficients.fixed & (coefficients.groups < 0)
        self._members = coefficients.members
        # The members of a variance group have one unit.
        self._group_units = np.array([abs(self._to_user[at[0], at[0]]) for at in self._members])
        self._parts = list(_parts(tasks, names.coefficients))
        self._tasks = self._both_likelihoods(tasks)
        self.theta = self._theta_of(fit)

    def effect_components(self, theta: np.ndarray) -> Iterator[VarianceComponent]:
        """See MixedObjective."""
        for part in self._parts:
            F = np.zeros((len(part.members), part.n_columns))
            F[part.rows, part.columns] = theta[part.at]
            yield VarianceComponent(self.names.groups[0], part.names, F @ F.T, part.kind, part.rank)

    @property
    def _group_slice(self) -> slice:
        """The slice of theta with the standard deviations of the variance groups."""
        begin = self._parts[-1].at.stop if self._parts else 0
        return slice(begin, begin + len(self._members))

    def _both_likelihoods(self, tasks: MixedTasks) -> dict[bool, MixedTasks]:
        """The tasks, restricted or not, with derivatives in all entries of C that blocks reach."""
        varying = np.zeros(tasks.p, dtype=bool)
        for part in self._parts:
            varying |= (self._to_standard[:, part.members] != 0).any(axis=1)
        tasks = tasks.with_coefficients(replace(tasks.coefficients, varying=varying))
        both = {restricted: copy.copy(tasks) for restricted in (False, True)}
        for restricted, each in both.items():
            each.restricted = restricted
        return both

    def _theta_of(self, fit: CovarianceFit) -> np.ndarray:
        """Theta of a fit, (q,)."""
        noise, theta = fit.evidence.noise, []
        root = math.sqrt(noise) * self._to_user @ fit.covariance.root
        for part in self._parts:
            F = triangular_factor(root[part.members], part.kind, part.rank)
            theta.append(F[part.rows, part.columns])
        sigma = np.array([math.sqrt(noise) * self._unit])
        return np.concatenate([*theta, np.sqrt(noise * fit.taus[1:]) * self._group_units,
                               np.log(sigma)])  # fmt: skip

    def evaluation(self, theta: np.ndarray, restricted: bool) -> Evaluation:
        """See MixedObjective."""
        tasks, A = self._tasks[restricted], self._to_user
        sigma = math.exp(theta[-1]) / self._unit  # in standard units
        L, n, s2 = self._loadings(theta) / sigma, float(tasks.n.sum()), sigma**2
        taus = (theta[self._group_slice] / self._group_units) ** 2 / s2
        safe = np.maximum(taus, SMALLEST_TAU)
        precision = tasks.prior_precision(np.append(math.inf, safe))
        e = tasks.evaluate(Covariance(np.zeros(tasks.p), L), precision, integrated=restricted)
        fixed = tasks.coefficients.fixed
        inverse, _, _, rank = inverse_precision(e.total + np.diag(precision), False, fixed)
        deviance, degrees = -2 * e.value + 2 * n * math.log(self._unit), n
        if restricted:
            degrees = max(n - (rank - np.count_nonzero(precision)), 1.0)
            # The volume of a unit cube of the fixed effects depends on their units.
            deviance -= 2 * np.linalg.slogdet(A[np.ix_(self._flat, self._flat)])[1]
        deviance += degrees * (math.log(s2 / e.noise) + e.noise / s2 - 1)

        # The gradients of the evidence are at its best s2; squares are divided by the given one.
        more, at = 1 / s2 - 1 / e.noise, np.flatnonzero(tasks.coefficients.varying)
        by_covariance = e.gradient.copy()
        by_covariance[np.ix_(at, at)] += 0.5 * more * e.scores[:, at].T @ e.scores[:, at]
        by_loadings = -4 * by_covariance @ L
        squares = np.array([precision[group] @ e.mean[group] ** 2 for group in self._members])
        by_taus = (-2 * e.prior_gradient[1:] - more * squares) / safe
        deviance += by_taus @ (taus - safe)  # linear where tau is too small for its inverse
        by_log_sigma = 2 * degrees * (1 - e.noise / s2) - np.sum(by_loadings * L)
        return Evaluation(
            deviance=float(deviance),
            gradient=self._gradient(theta, by_loadings / sigma, by_taus / s2, by_log_sigma),
            fixed=(A @ e.mean + self._shift)[self._flat],
            covariance=s2 * A[self._flat] @ inverse @ A[self._flat].T,
        )

    def _loadings(self, theta: np.ndarray) -> np.ndarray:
        """L (p, k) times s: the factors of all blocks in standard units."""
        F = np.zeros((len(self._shift), sum(part.n_columns for part in self._parts)))
        for part in self._parts:
            F[part.members[part.rows], part.first + part.columns] = theta[part.at]
        return self._to_standard @ F

    def _gradient(
        self, theta: np.ndarray, by_loadings: np.ndarray, by_variances: np.ndarray, by_sigma: float
    ) -> np.ndarray:
        """Gradient in theta (q,), from those in s L, in s2 tau, and in log s with L held."""
        gradient, by_factors = np.empty(len(theta)), self._to_standard.T @ by_loadings
        for part in self._parts:
            gradient[part.at] = by_factors[part.members[part.rows], part.first + part.columns]
        stds, units = theta[self._group_slice], self._group_units
        gradient[self._group_slice] = 2 * by_variances * stds / units**2
        gradient[-1] = by_sigma - 2 * by_variances @ (stds / units) ** 2
        return gradient


class _Part(NamedTuple):
    """The position of a block of effects in theta."""

    members: np.ndarray  # (m,) coefficients
    names: tuple[str, ...]
    kind: str
    rank: int
    rows: np.ndarray  # of the factor F, for each of its entries in theta
    columns: np.ndarray
    n_columns: int  # of F
    first: int  # of its columns, among those of all blocks
    at: slice  # of theta


def _parts(tasks: MixedTasks, names: Sequence[str]) -> Iterator[_Part]:
    """The blocks of effects with their places."""
    begin, first = 0, 0
    for block in tasks.coefficients.blocks:
        members, rank = np.array(block.members, dtype=int), block.rank or 0
        rows, columns = free_entries(block.kind, len(members), rank)
        count, at = int(columns.max(initial=-1)) + 1, slice(begin, begin + len(rows))
        own = tuple(names[i] for i in members)
        yield _Part(members, own, block.kind, rank, rows, columns, count, first, at)
        begin, first = at.stop, first + count
