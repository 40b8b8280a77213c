"""Nested groups: the estimate of a formula such as ``(1 + x | district/school)``."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sharedspan.estimators.fitted import FittedSpan
from sharedspan.inputs.label_paths import outer_label
from sharedspan.inputs.labels import label_array
from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.nested_fit import fit_nested
from sharedspan.mixed_model.nested_posterior import nested_posterior
from sharedspan.mixed_model.objective import map_to_user
from sharedspan.mixed_model.retained import NestedRetained, RetainedFit
from sharedspan.mixed_model.structures import Effects
from sharedspan.statistics.canonical import Problem

if TYPE_CHECKING:
    from sharedspan.estimators.mixed import MixedModel


def estimate_nested(model: MixedModel, problem: Problem, tasks: MixedTasks) -> FittedSpan:
    """The covariances of both levels by marginal likelihood, and the posterior of all tasks."""
    from sharedspan.estimators.mixed import log_volume

    assert isinstance(model.slopes, Effects)
    canonical, scaling, coefficients = problem.canonical, tasks.scaling, tasks.coefficients
    labels, parent = outer_groups(problem.labels)
    first = int(not model.fit_intercept)
    outer, inner = (
        tuple(block.shifted(-first) for block in blocks)
        for blocks in (model.slopes.outer, model.slopes.blocks)
    )
    if any(block.kind == "low_rank" for block in (*outer, *inner)):
        raise ValueError(
            "rr(...) is not available for nested groups: give their random effects an "
            "unrestricted covariance (|), or make them independent (||)."
        )
    fit = fit_nested(tasks, parent, outer, inner, restricted=tasks.restricted)
    if not fit.converged:
        warnings.warn(
            f"The search for the variances was stopped after {fit.n_iter} steps: the fit is close "
            "to the optimum, but may not have reached it.",
            ConvergenceWarning,
            stacklevel=7,
        )
    posterior = nested_posterior(tasks, parent, fit, canonical).stacked()
    log_likelihood = fit.value + tasks.n.sum() * math.log(canonical.units.y_scale / scaling.y_scale)
    if tasks.restricted:
        log_likelihood += log_volume(canonical, scaling, coefficients)
    A, shift = map_to_user(scaling, canonical, tasks.p)
    V = np.vstack([posterior.mean, posterior.b]) @ A.T + shift
    level = V[:, 0] if model.fit_intercept else np.zeros(len(V))
    slopes, T = V[:, int(model.fit_intercept) :], tasks.n_tasks
    unit = scaling.y_scale / canonical.units.y_scale
    spread = math.sqrt(fit.noise) * A @ np.hstack([fit.outer.root, fit.inner.root])
    std = np.linalg.norm(spread, axis=1)
    nested = NestedRetained(fit, parent)
    options = canonical, problem.rows, tasks.restricted, None, nested
    extra: dict[str, Any] = {
        "candidates": [],
        "log_likelihood": float(log_likelihood),
        "noise": "shared",
        "widening": 1.0,
        "slopes": "given",
        "slope_std": std[int(model.fit_intercept) :],
        "intercept_std": float(std[0]) if model.fit_intercept else 0.0,
        "outlier_probability": np.zeros(T),
        "outer_tasks": label_array(labels),
        "outer_coef": slopes[T:-1].copy(),
        "outer_intercept": level[T:-1].copy(),
        "_retained": RetainedFit(tasks, None, *options),
    }
    return FittedSpan(
        coef=slopes[:T].copy(),
        intercept=level[:T].copy(),
        mean_coef=slopes[-1].copy(),
        mean_intercept=float(level[-1]),
        representation=np.zeros((slopes.shape[1], 0)),
        task_weights=np.zeros((0, T)),
        rank=0,
        noise_variance=posterior.noise[:T] * unit**2,
        degrees_of_freedom=posterior.degrees_of_freedom,
        uncertainty=posterior,
        n_iter=fit.n_iter,
        converged=fit.converged,
        extra=extra,
    )


def outer_groups(labels: Any) -> tuple[tuple[str, ...], np.ndarray]:
    """Labels (R,) of the outer groups, and the number of the group of each task, (T,)."""
    outer = [outer_label(str(label)) for label in labels]
    known = tuple(dict.fromkeys(outer))
    place = {label: i for i, label in enumerate(known)}
    return known, np.array([place[label] for label in outer])
