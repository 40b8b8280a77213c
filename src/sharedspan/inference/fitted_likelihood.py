"""What a fitted mixed model brings to a comparison of likelihoods, and the same without effects."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from sharedspan.inference.curvature import likelihood_curvature, minimised, off_zero, theta_rows
from sharedspan.mixed_model.family_objective import FamilyObjective
from sharedspan.mixed_model.objective import MixedObjective, free_entries


@dataclass(frozen=True)
class FittedLikelihood:
    """What a fitted model brings to a comparison.

    Attributes
    ----------
    name : str
        Its formula.
    n_rows : int
    fixed : tuple of str
        Names of the fixed effects.
    variances : frozenset of (str, str)
        Group and name of the effects that vary.
    covariances : frozenset of (str, str, str)
        Group and names, sorted, of the pairs of effects that may be correlated.
    n_variance_parameters : int
        Free numbers of the covariances, the noise included.
    deviance : float or None
        -2 log L of the fit by maximum likelihood; None if it has not been made.
    restricted_deviance : float or None
        The same by restricted likelihood.
    restricted : bool
        Whether the model was fitted by restricted likelihood.
    low_rank : bool
        Whether a covariance is of low rank.
    """

    name: str
    n_rows: int
    fixed: tuple[str, ...]
    variances: frozenset[tuple[str, str]]
    covariances: frozenset[tuple[str, str, str]]
    n_variance_parameters: int
    deviance: float | None
    restricted_deviance: float | None = None
    restricted: bool = False
    low_rank: bool = False

    @property
    def n_parameters(self) -> int:
        return len(self.fixed) + self.n_variance_parameters


def fitted_likelihood(
    objective: MixedObjective, name: str, fixed_names: tuple[str, ...]
) -> FittedLikelihood:
    """The record of a Gaussian fit."""
    deviance, _ = objective.deviance(objective.theta, restricted=objective.restricted)
    return record_of(objective, float(deviance), name, fixed_names)


def record_of(
    objective: MixedObjective | FamilyObjective,
    deviance: float,
    name: str,
    fixed_names: tuple[str, ...],
) -> FittedLikelihood:
    """The record of a fit; of the two deviances it has the one that was fitted."""
    components = objective.components(objective.theta)
    effects = [each for each in components if each.kind != "residual"]
    return FittedLikelihood(
        name=name,
        n_rows=objective.n_rows,
        fixed=fixed_names,
        variances=frozenset((each.group, effect) for each in effects for effect in each.effects),
        covariances=frozenset(
            (each.group, *pair)
            for each in effects
            if each.kind in ("full", "low_rank")
            for pair in combinations(sorted(each.names), 2)
        ),
        n_variance_parameters=len(objective.theta),
        deviance=None if objective.restricted else deviance,
        restricted_deviance=deviance if objective.restricted else None,
        restricted=objective.restricted,
        low_rank=any(each.kind == "low_rank" for each in effects),
    )


def without_effects(
    objective: MixedObjective,
    name: str,
    fixed_names: tuple[str, ...],
    dropped: Collection[tuple[str, str]] | None = None,
) -> FittedLikelihood:
    """The record of the same model refitted without some of its effects.

    Parameters
    ----------
    objective : MixedObjective
    name : str
        What the smaller model is called.
    fixed_names : tuple of str
    dropped : collection of (str, str), optional
        Group and name of effects that do not vary in the smaller model; by default all.
    """
    record = fitted_likelihood(objective, name, fixed_names)
    dropped = record.variances if dropped is None else frozenset(dropped)
    unknown = sorted(dropped - record.variances)
    if unknown:
        known = ", ".join(map(repr, sorted(record.variances)))
        raise ValueError(f"The model has no effect {unknown[0]!r}: its effects are {known}.")
    theta, components = objective.theta, objective.components(objective.theta)
    effects = [(each.group, effect) for each in components for effect in each.effects]
    gone = np.array([effect in dropped for effect in effects])[theta_rows(components)[0]]
    curvature = likelihood_curvature(objective, theta, restricted=objective.restricted)
    start = np.where(gone, 0.0, off_zero(theta, components, curvature.scale))
    R = np.zeros((len(theta), int((~gone).sum())))
    R[~gone] = np.diag(curvature.scale[~gone])

    def deviance(at: np.ndarray) -> tuple[float, np.ndarray]:
        return objective.deviance(at, restricted=objective.restricted)

    _, least = minimised(deviance, start, R)
    pairs = frozenset(
        pair for pair in record.covariances if not {(pair[0], each) for each in pair[1:]} & dropped
    )
    sizes = [sum((each.group, e) not in dropped for e in each.effects) for each in components]
    count = sum(
        len(free_entries(each.kind, m, min(each.rank, m))[0])
        for each, m in zip(components, sizes, strict=True)
    )
    return replace(
        record,
        variances=record.variances - dropped,
        covariances=pairs,
        n_variance_parameters=count,
        deviance=None if objective.restricted else least,
        restricted_deviance=least if objective.restricted else None,
    )
