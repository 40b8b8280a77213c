"""The objective of nested groups, such as ``y ~ x + (1 + x | district/school)``.

Theta has the entries of the blocks of the outer groups first, then those of the tasks, the standard
deviations of the variance groups of b, and log sigma. Coefficients in the user's units are
A v + shift with v those in standard units, where a factor F of the user's effects is A^-1 F.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.nested import NestedTasks
from sharedspan.mixed_model.nested_factors import BlockFactors
from sharedspan.mixed_model.nested_fit import SMALLEST_STD, NestedFit
from sharedspan.mixed_model.objective import (
    EffectNames,
    Evaluation,
    MixedObjective,
    VarianceComponent,
    map_to_user,
)
from sharedspan.mixed_model.terms import Covariance
from sharedspan.statistics.canonical import Canonical


class NestedObjective(MixedObjective):
    """The likelihood of a nested fit and of any other variances.

    Parameters
    ----------
    tasks : MixedTasks
    parent : ndarray of int of shape (T,)
        Number of the outer group of each task, from zero.
    fit : NestedFit
        By maximum or restricted likelihood.
    canonical : Canonical
        The way back to the user's units.
    names : EffectNames
        Its groups are such as ("batch", "cask:batch").
    """

    def __init__(
        self,
        tasks: MixedTasks,
        parent: np.ndarray,
        fit: NestedFit,
        canonical: Canonical,
        names: EffectNames,
    ) -> None:
        self.restricted, self.n_rows = fit.restricted, round(float(tasks.n.sum()))
        self.names = names
        self._nested = NestedTasks(tasks, parent)
        self._levels = tuple(
            BlockFactors(blocks, tasks.p, triangular=True)
            for blocks in (fit.outer_blocks, fit.inner_blocks)
        )
        self._unit = tasks.scaling.y_scale / canonical.units.y_scale
        self._to_user, self._shift = map_to_user(tasks.scaling, canonical, tasks.p)
        self._to_standard = np.linalg.inv(self._to_user)
        self._flat = tasks.coefficients.fixed & (tasks.coefficients.groups < 0)
        # The members of a variance group have one unit.
        members = tasks.coefficients.members
        self._group_units = np.array([abs(self._to_user[at[0], at[0]]) for at in members])
        self._cuts = np.cumsum([*(len(level.rows) for level in self._levels), len(members)])
        self.theta = self._theta_of(fit)

    def effect_components(self, theta: np.ndarray) -> Iterator[VarianceComponent]:
        """See MixedObjective."""
        parts = np.split(theta, self._cuts)[:-2]
        for group, level, part in zip(self.names.groups, self._levels, parts, strict=True):
            F = level.matrix(part)
            for block, columns in zip(level.blocks, level.slices, strict=True):
                members = list(block.members)
                own = F[members, columns]
                names = tuple(self.names.coefficients[i] for i in members)
                yield VarianceComponent(group, names, own @ own.T, block.kind, block.rank or 0)

    def _theta_of(self, fit: NestedFit) -> np.ndarray:
        """Theta of a fit, (q,)."""
        std = math.sqrt(fit.noise)
        parts = [
            level.entries(level.factored(std * self._to_user @ covariance.root))
            for level, covariance in zip(self._levels, (fit.outer, fit.inner), strict=True)
        ]
        used = fit.taus[1:] > 1.01 * SMALLEST_STD**2
        stds = std * np.sqrt(fit.taus[1:]) * used * self._group_units
        return np.concatenate([*parts, stds, [math.log(std * self._unit)]])

    def evaluation(self, theta: np.ndarray, restricted: bool) -> Evaluation:
        """See MixedObjective."""
        tasks, A = self._nested.tasks, self._to_user
        *parts, stds, log_sigma = np.split(theta, self._cuts)
        sigma = math.exp(float(log_sigma[0])) / self._unit  # in standard units
        roots = [
            self._to_standard @ level.matrix(part) / sigma
            for level, part in zip(self._levels, parts, strict=True)
        ]
        relative = stds / (self._group_units * sigma)
        taus = np.maximum(relative**2, SMALLEST_STD**2)
        outer, inner = (Covariance(np.zeros(tasks.p), L) for L in roots)
        precision = tasks.prior_precision(np.append(math.inf, taus))
        e = self._nested.evaluate(outer, inner, precision, restricted=restricted, noise=sigma**2)
        d = self._nested.derivatives(e)
        deviance = -2 * e.value + 2 * float(tasks.n.sum()) * math.log(self._unit)
        if restricted:
            # The volume of a unit cube of the fixed effects depends on their units.
            deviance -= 2 * np.linalg.slogdet(A[np.ix_(self._flat, self._flat)])[1]
        by_log_taus = np.where(relative**2 > SMALLEST_STD**2, -2 * d.prior[1:], 0.0)
        by_roots = [-4 * G @ L for G, L in zip((d.outer, d.inner), roots, strict=True)]
        gradient = [
            level.entries(self._to_standard.T @ by_root / sigma)
            for level, by_root in zip(self._levels, by_roots, strict=True)
        ]
        # A larger sigma makes the same effects smaller, relative to the noise.
        by_log_sigma = 2 * (e.counted - e.squares / e.noise) - 2 * by_log_taus.sum()
        by_log_sigma -= sum(float(np.sum(G * L)) for G, L in zip(by_roots, roots, strict=True))
        by_stds = 2 * by_log_taus / np.where(stds == 0, 1.0, stds)
        return Evaluation(
            deviance=deviance,
            gradient=np.concatenate([*gradient, by_stds, [by_log_sigma]]),
            fixed=(A @ e.mean + self._shift)[self._flat],
            covariance=e.noise * A[self._flat] @ e.mean_covariance @ A[self._flat].T,
        )
