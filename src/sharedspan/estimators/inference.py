"""Inference for models with a formula: tests, variance components and effects of tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from sharedspan.families import Binomial, Counts, Family, NegativeBinomial
from sharedspan.inference.fixed_effects import FixedEffects, fixed_effects
from sharedspan.inference.mixed_inference import (
    SINGULAR,
    GroupEffects,
    MixedInference,
    singular_words,
)
from sharedspan.inference.variance_intervals import wald_intervals
from sharedspan.inputs.encoders import Number
from sharedspan.inputs.formula_encoding import FormulaEncoding
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.mixed_model.conditional import conditional_effects, group_covariance
from sharedspan.mixed_model.family_objective import FamilyObjective
from sharedspan.mixed_model.nested_objective import NestedObjective
from sharedspan.mixed_model.nested_posterior import nested_modes
from sharedspan.mixed_model.objective import (
    INTERCEPT,
    EffectNames,
    VarianceComponent,
    map_to_user,
)
from sharedspan.mixed_model.one_level import OneLevelObjective
from sharedspan.mixed_model.retained import RetainedFit
from sharedspan.mixed_model.structures import Effects

if TYPE_CHECKING:
    from sharedspan.estimators.mixed import MixedModel

QUARTILES = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
LOGISTIC, NORMAL = math.pi**2 / 3, 1.0  # variances of the latent responses of binomial families


def coefficient_names(model: MixedModel) -> tuple[str, ...]:
    """Names of the coefficients, the intercept first if there is one, (p,)."""
    names = tuple(map(str, model.coef_names_))
    return (INTERCEPT, *names) if model.fit_intercept else names


def group_name(model: MixedModel) -> str:
    """What the effects vary between."""
    columns = model.task_column
    if isinstance(columns, tuple):
        return "/".join(columns)
    return "task" if columns is None else str(columns)


def outer_name(model: MixedModel) -> str:
    """What the effects of outer groups vary between."""
    columns = model.task_column
    return str(columns[0]) if isinstance(columns, tuple) else "outer group"


def variance_group_names(model: MixedModel) -> tuple[str, ...]:
    """Names of the variance groups of b: s(x) of splines, and columns of crossed groups."""
    columns = vars(model).get("columns_")
    if columns is None:
        return ()
    encoding, names = columns.encoding, dict[int, str]()
    for source, group in zip(columns.column_of, columns.groups, strict=True):
        if group >= 0:
            curved = any(
                isinstance(c, Number) and c.column == source and c.spline is not None
                for c in encoding.columns
            )
            names[int(group)] = f"s({source})" if curved else source
    return tuple(names[i] for i in sorted(names))


def objective_of(model: MixedModel) -> Any:
    """The likelihood of the fit, as inference needs it."""
    fit = retained_fit(model)
    groups = (group_name(model),) if fit.nested is None else (outer_name(model), group_name(model))
    names = EffectNames(coefficient_names(model), groups, variance_group_names(model))
    if fit.nested is not None:
        nested = fit.nested
        return NestedObjective(fit.tasks, nested.parent, nested.fit, fit.canonical, names)
    assert fit.fit is not None
    if fit.optimizer is not None:
        return FamilyObjective(
            fit.optimizer, fit.fit, fit.canonical, names, approximation=model.approximation_
        )
    return OneLevelObjective(fit.tasks, fit.fit, fit.canonical, names)


def retained_fit(model: MixedModel) -> RetainedFit:
    """The likelihood and the rows of the fit; an error if the model was read from a file."""
    fit = vars(model).get("_retained_")
    if fit is None:
        raise ValueError(
            "The model does not have the rows of its fit, which neither model files nor models "
            "other than those of ss.mixed contain: fit it again by ss.mixed."
        )
    return fit


def infer(model: MixedModel) -> MixedInference:
    """Inference of a model that retains its fit; computed once."""
    if "_inference_" not in vars(model):
        with one_blas_thread():
            model._inference_ = _infer(model)
    return model._inference_


def _infer(model: MixedModel) -> MixedInference:
    fit, objective = retained_fit(model), objective_of(model)
    names = np.array(coefficient_names(model), dtype=object)
    coefficients = fit.tasks.coefficients
    flat = tuple(names[coefficients.fixed & (coefficients.groups < 0)])
    if isinstance(objective, FamilyObjective):
        fixed = FixedEffects(flat, *objective.fixed())
        components, intervals = objective.components(), []
        n_parameters = len(flat) + len(objective.theta)
    else:
        fixed = fixed_effects(objective, flat)
        components = objective.components(objective.theta)
        intervals = wald_intervals(objective, theta_covariance=fixed.theta_covariance)
        n_parameters = len(flat) + len(objective.theta)
    effect_names, effects, std, groups = conditional(model, fit)
    mean, products = second_moments(model, fit)
    b = mean_coefficients(model)
    n = fit.rows.n_rows
    spread = (products - np.outer(mean, mean)) * n / max(n - 1, 1)  # as MuMIn and performance do
    effect_variance = sum(_component_variance(c, names, products) for c in components)
    return MixedInference(
        fixed=fixed,
        components=tuple(components),
        intervals=tuple(intervals),
        n_parameters=n_parameters,
        residual_quantiles=np.quantile(scaled_residuals(model, fit, components), QUARTILES),
        fixed_variance=float(b @ spread @ b),
        effect_variance=effect_variance,
        residual_variance=residual_variance(model, components, mean @ b, effect_variance),
        effect_names=effect_names,
        effects=effects,
        effect_std=std,
        groups=groups,
        notes=tuple(fit_notes(model, fit)),
    )


def fit_notes(model: MixedModel, fit: RetainedFit) -> Iterator[str]:
    """What is singular about a fit, and what was left out of it, in sentences."""
    names, coefficients = coefficient_names(model), fit.tasks.coefficients
    assert isinstance(model.slopes, Effects)
    asked = np.array(model.slopes.fixed[int(not model.fit_intercept) :])
    for i in np.flatnonzero(asked & ~coefficients.fixed):
        yield f"{names[i]} is a linear combination of other fixed effects, and was left out."
    levels: list[tuple[str, Any, np.ndarray]] = []
    if fit.nested is not None:
        nested = fit.nested.fit
        levels.append((outer_name(model), nested.outer_blocks, nested.outer.matrix))
        levels.append((group_name(model), nested.inner_blocks, nested.inner.matrix))
        taus = nested.taus
    else:
        assert fit.fit is not None
        levels.append((group_name(model), coefficients.blocks, fit.fit.covariance.matrix))
        taus = fit.fit.taus
    for group, blocks, C in levels:
        for block in blocks:
            at = list(block.members)
            own = tuple(names[i] for i in at)
            words = singular_words(group, own, C[np.ix_(at, at)], block.kind)
            if words is not None:
                yield words
    for name, tau in zip(variance_group_names(model), taus[1:], strict=True):
        if tau < SINGULAR**2:
            straight = "The curve of s(x) is straight" if name.startswith("s(") else ""
            yield (
                f"{straight.replace('s(x)', name)}." if straight
                else f"The standard deviation of effects of {name} is zero."
            )  # fmt: skip


def conditional(
    model: MixedModel, fit: RetainedFit
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray, tuple[GroupEffects, ...]]:
    """Names (v,), conditional means and standard deviations (T, v) of effects, and other groups."""
    names = np.array(coefficient_names(model), dtype=object)
    if fit.nested is not None:
        parent, nested = fit.nested.parent, fit.nested.fit
        outer, inner = nested_modes(fit.tasks, parent, nested, fit.canonical)
        own = tuple(names[list(outer.members)])
        labels = tuple(map(str, model.outer_tasks_.tolist()))
        group = GroupEffects(outer_name(model), labels, own, outer.mean, outer.std)
        return tuple(names[list(inner.members)]), inner.mean, inner.std, (group,)
    assert fit.fit is not None
    A, _ = map_to_user(fit.tasks.scaling, fit.canonical, fit.tasks.p)
    e, covariance = fit.fit.evidence, fit.fit.covariance
    groups = group_covariance(fit.tasks, covariance, fit.fit.taus)
    effects, std = conditional_effects(fit.tasks, covariance, e.mean, e.noise, A, groups)
    at = np.flatnonzero(fit.tasks.coefficients.varying)
    crossed = tuple(crossed_effects(model, e.noise * A @ groups @ A.T))
    return tuple(names[at]), effects[:, at], std[:, at], crossed


def crossed_effects(model: MixedModel, covariance: np.ndarray) -> Iterator[GroupEffects]:
    """Effects of the levels of crossed groups, given their covariance (p, p)."""
    std = np.sqrt(np.maximum(np.diag(covariance), 0.0))[int(model.fit_intercept) :]
    for name, at in crossed_groups(model):
        labels = tuple(str(model.coef_names_[j]).removeprefix(f"{name}=") for j in at)
        yield GroupEffects(
            name, labels, (INTERCEPT,), model.mean_coef_[at][:, None], std[at][:, None]
        )


def crossed_groups(model: Any) -> list[tuple[str, np.ndarray]]:
    """Names of crossed grouping factors, and the features that are their levels."""
    columns = vars(model).get("columns_")
    if columns is None or not isinstance(columns.encoding, FormulaEncoding):
        return []
    crossed, groups = crossed_features(model), np.asarray(columns.groups)
    names = enumerate(variance_group_names(model))
    each = ((name, np.flatnonzero(crossed & (groups == i))) for i, name in names)
    return [(name, at) for name, at in each if len(at)]


def mean_coefficients(model: MixedModel) -> np.ndarray:
    """Coefficients of the mean task, without crossed groups, (p,)."""
    coef = np.append([model.mean_intercept_] * model.fit_intercept, model.mean_coef_)
    crossed = crossed_features(model)
    coef[int(model.fit_intercept) :][crossed] = 0.0
    return coef


def crossed_features(model: MixedModel) -> np.ndarray:
    """Mask of the features that are levels of a crossed grouping factor, (d,)."""
    columns = vars(model).get("columns_")
    if columns is None or not isinstance(columns.encoding, FormulaEncoding):
        return np.zeros(len(model.coef_names_), dtype=bool)
    smooth = {i for i, name in enumerate(variance_group_names(model)) if name.startswith("s(")}
    return np.array([g >= 0 and int(g) not in smooth for g in columns.groups], dtype=bool)


def second_moments(model: MixedModel, fit: RetainedFit) -> tuple[np.ndarray, np.ndarray]:
    """Means (p,) and mean products (p, p) of a row [1, x] in the user's units."""
    p = len(coefficient_names(model))
    total, products, count = np.zeros(p), np.zeros((p, p)), 0
    for block in fit.rows.blocks():
        Z = np.column_stack([np.ones(len(block.y)), block.X]) if model.fit_intercept else block.X
        total += Z.sum(axis=0)
        products += Z.T @ Z
        count += len(Z)
    return total / count, products / count


def _component_variance(
    component: VarianceComponent, names: np.ndarray, products: np.ndarray
) -> float:
    """Mean variance over the rows that a component gives the linear predictor."""
    if component.kind == "residual":
        return 0.0
    if component.kind == "variance":  # one level of a crossed group in each row; curves are fixed
        return 0.0 if component.group.startswith("s(") else float(component.covariance[0, 0])
    place = {name: i for i, name in enumerate(names)}
    at = [place[name] for name in component.names]
    return float(np.sum(component.covariance * products[np.ix_(at, at)]))


def residual_variance(
    model: MixedModel, components: Any, level: float, effect_variance: float
) -> float:
    """The variance of a row on the scale of the linear predictor."""
    family: Family = model.response_family()
    if isinstance(family, Binomial):
        return NORMAL if family.name == "probit" else LOGISTIC
    if isinstance(family, Counts):
        mean = math.exp(min(level + effect_variance / 2, 700.0))
        excess = 1 / family.dispersion if isinstance(family, NegativeBinomial) else 0.0
        return math.log1p(1 / mean + excess)
    return float(components[-1].covariance[0, 0])


def scaled_residuals(model: MixedModel, fit: RetainedFit, components: Any) -> np.ndarray:
    """Residuals at the fitted effects over their standard deviations, in task order, (rows,)."""
    family, rows = model.response_family(), fit.rows
    residuals = np.empty(rows.n_rows)
    for block in rows.blocks():
        owner = np.repeat(block.ids, np.diff(block.starts))
        eta = np.einsum("ij,ij->i", block.X, model.coef_[owner]) + model.intercept_[owner]
        if fit.optimizer is None:
            variance = components[-1].covariance[0, 0]
            if isinstance(model.slopes, Effects) and model.slopes.weighted_noise:
                variance = variance / block.weight
            residuals[block.positions] = (block.y - eta) / np.sqrt(variance)
        else:
            mean = family.mean(eta + block.offset)
            # A mean of 0 or 1, where features separate the classes, has no variance.
            variance = np.maximum(family.variance(mean), np.finfo(float).tiny) / block.weight
            residuals[block.positions] = (block.y - mean) / np.sqrt(variance)
    return residuals


def task_effects(model: MixedModel, group: str | None) -> Any:
    """Effects of tasks with standard errors; see ``MixedModel.task_effects``."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("task_effects needs pandas: pip install pandas") from error
    names, effects, std = effects_of(model)
    index = pd.Index(model.tasks_.tolist(), name=group_name(model), dtype=model.tasks_.dtype)
    if group not in (None, group_name(model)):
        others = {each.group: each for each in infer(model).groups} if has_inference(model) else {}
        if group not in others:
            known = ", ".join(map(repr, (group_name(model), *others)))
            raise ValueError(f"group={group!r} is unknown: the model has effects of {known}.")
        other = others[str(group)]
        names, effects, std = other.names, other.effects, other.std
        index = pd.Index(list(other.labels), name=other.group)
    columns = {}
    for i, name in enumerate(names):
        columns[str(name)] = effects[:, i]
        columns[f"{name} std"] = std[:, i]
    return pd.DataFrame(columns, index=index)


def has_inference(model: Any) -> bool:
    """Whether a model has its likelihood, or what was inferred from it before it was saved."""
    return "_retained_" in vars(model) or "_inference_" in vars(model)


def effects_of(model: MixedModel) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Names (v,) of the coefficients that vary, their deviations and standard errors, (T, v)."""
    if has_inference(model):
        inferred = infer(model)
        return inferred.effect_names, inferred.effects, inferred.effect_std
    posterior = model._uncertainty_
    p = len(posterior.b)
    A, _ = map_to_user(posterior.scaling, posterior.canonical, p)
    effects = (posterior.mean - posterior.b) @ A.T
    upper, square = np.triu_indices(p), np.empty((p, p))
    std = np.empty((len(effects), len(A)))
    for t, packed in enumerate(posterior.packed):
        square[upper] = square.T[upper] = packed
        std[t] = np.sqrt(np.maximum(np.einsum("ip,pq,iq->i", A, square, A), 0.0))
    varies = np.flatnonzero(std_between_tasks(model))
    return tuple(coefficient_names(model)[i] for i in varies), effects[:, varies], std[:, varies]


def std_between_tasks(model: MixedModel) -> np.ndarray:
    """Standard deviations of coefficients between tasks, zero for those that do not vary, (p,)."""
    return np.sqrt(np.maximum(np.diag(covariance_between_tasks(model)), 0.0))


def covariance_between_tasks(model: MixedModel) -> np.ndarray:
    """Covariance of coefficients between tasks, (p, p)."""
    posterior = model._uncertainty_
    A, _ = map_to_user(posterior.scaling, posterior.canonical, len(posterior.b))
    # Models of version 0.1 do not hold the covariance between tasks alone.
    between = posterior.new if posterior.between is None else posterior.between
    return A @ between @ A.T
