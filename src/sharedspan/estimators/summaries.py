"""Summaries of fitted models: the numbers of any estimator as an ``inference.summary.Summary``."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sharedspan.estimators.directions import CoefficientView
from sharedspan.estimators.fitted import FittedSpan
from sharedspan.estimators.inference import (
    coefficient_names,
    covariance_between_tasks,
    crossed_groups,
    group_name,
    has_inference,
    infer,
    outer_name,
)
from sharedspan.estimators.saturation import saturation_notes
from sharedspan.inference.fixed_effects import t_quantile
from sharedspan.inference.mixed_inference import MixedInference
from sharedspan.inference.summary import Estimate, FixedTable, Summary, VarianceEntry
from sharedspan.inference.summary_numbers import format_p
from sharedspan.inference.summary_text import wrap_text
from sharedspan.inference.variance_intervals import ParameterInterval
from sharedspan.inputs.classes import counted
from sharedspan.inputs.columns import Columns
from sharedspan.inputs.table_columns import TableColumns
from sharedspan.mixed_model.objective import INTERCEPT, VarianceComponent
from sharedspan.mixed_model.structures import Effects

if TYPE_CHECKING:
    from sharedspan.estimators.base import TaskEstimator
    from sharedspan.estimators.mixed import MixedModel

LINKS = {"binomial": "logit", "probit": "probit", "poisson": "log", "negative_binomial": "log"}
TITLES = {  # by what tasks share
    "span": "Regressions of tasks that share a span",
    "slopes": "Regression with slopes that all tasks share",
    "population": "Mixed model whose covariance was found from the data",
    "nothing": "Separate regressions",
    "prior": "Regressions of new tasks with a known span",
}
SMALLEST_CORRELATION = 0.005  # that is shown
NOTICEABLE = 1.005  # ratio of standard errors with and without the error of the variances
CORRECTED = " (p-values and bounds allow for the error of the variances)"
MEANS_OF = {True: "Means of the population of tasks", False: "Means over the fitted tasks"}


def summary_of(model: TaskEstimator, level: float = 0.95) -> Summary:
    """The summary of a fitted model; see ``TaskEstimator.summary``."""
    check_is_fitted(model)
    if isinstance(vars(model).get("slopes"), Effects) and has_inference(model):
        return formula_summary(model, level)
    return plain_summary(model, level)


# ---- models with a formula -----------------------------------------------------------------------


def formula_summary(model: MixedModel, level: float) -> Summary:
    """The summary of a model that has fixed effects and variance components."""
    effects, inferred = model.slopes, infer(model)
    assert isinstance(effects, Effects)
    gaussian = model.response_family().name == "gaussian"
    deviance, q = -2 * model.log_likelihood_, inferred.n_parameters
    n_rows = model.n_rows_
    residual = [c for c in inferred.components if c.kind == "residual"]
    corrected = correction(inferred)
    return Summary(
        title="Linear mixed model" if gaussian else "Generalized linear mixed model",
        formula=effects.formula,
        family=model.response_family().name,
        link=LINKS.get(model.response_family().name, "identity"),
        response=effects.formula.partition("~")[0].strip(),
        n_rows=n_rows,
        groups=group_sizes(model),
        method=method_words(model),
        log_likelihood=model.log_likelihood_,
        criterion=deviance,
        aic=deviance + 2 * q,
        bic=deviance + np.log(n_rows) * q,
        residual_degrees=n_rows - q,
        facts=weight_facts(effects),
        residual_quantiles=inferred.residual_quantiles,
        icc=inferred.icc,
        r2_marginal=inferred.r2_marginal,
        r2_conditional=inferred.r2_conditional,
        level=level,
        fixed=fixed_table(inferred, level),
        fixed_title="Fixed effects" + CORRECTED * bool(corrected),
        variances=tuple(
            variance_entry(c, inferred, level)
            for c in inferred.components
            if c.kind != "residual" and len(c.names)
        ),
        sigma=None if not residual else sigma_of(residual[0], inferred, level),
        family_parameters=family_parameters(model),
        span=span_words(model),
        notes=(*class_notes(model), *inferred.notes, *corrected, *notes_on_fit(model)),
    )


def short_text(model: MixedModel) -> str:
    """What a model of a formula is, in a line or two."""
    assert isinstance(model.slopes, Effects)
    groups = "; ".join(f"{name}, {count}" for name, count in group_sizes(model))
    text = (
        f"{type(model).__name__} of {model.slopes.formula}: {model.n_rows_} rows, groups: {groups}"
    )
    return "\n".join(wrap_text(f"{text}; see summary()"))


def method_words(model: MixedModel) -> str:
    """How the model was fitted, as summaries say it."""
    if model.response_family().name == "gaussian":
        return "REML" if model.method == "reml" else "maximum likelihood"
    how = "Laplace approximation" if model.approximation_ == "laplace" else "quadrature"
    restricted = "restricted " if model.method == "reml" else ""
    return f"{restricted}maximum likelihood ({how})"


def weight_facts(effects: Effects) -> tuple[tuple[str, str], ...]:
    """What the sample weights of a formula are, if there are any."""
    return (("Weights", effects.weights),) if effects.weights else ()


def group_sizes(model: TaskEstimator) -> tuple[tuple[str, int], ...]:
    """Names and numbers of the groups."""
    sizes: list[tuple[str, int]] = [(group_name(model), len(model.tasks_))]
    if "outer_tasks_" in vars(model):
        sizes.append((outer_name(model), len(model.outer_tasks_)))
    sizes += [(name, len(at)) for name, at in crossed_groups(model)]
    return tuple(sizes)


def fixed_table(inferred: MixedInference, level: float) -> FixedTable:
    """Fixed effects with tests and intervals.

    These count the error of the variances, without which few tasks give too small p-values.
    """
    fixed, std = inferred.fixed, inferred.fixed.std_error
    degrees = fixed.degrees()
    interval = fixed.corrected().interval(level)
    outer = np.outer(std, std)
    correlation = np.divide(fixed.covariance, outer, out=np.eye(len(std)), where=outer > 0)
    return FixedTable(
        names=fixed.names,
        estimate=fixed.estimate,
        std_error=std,
        low=interval[:, 0],
        high=interval[:, 1],
        degrees=degrees if np.isfinite(degrees).any() else None,
        statistic=fixed.statistic,
        p_value=fixed.corrected().p_value,
        correlation=correlation if len(std) > 1 else None,
    )


def correction(inferred: MixedInference) -> tuple[str, ...]:
    """What intervals and p-values count besides the standard errors, if it matters."""
    plain, corrected = inferred.fixed, inferred.fixed.corrected()
    printed = [[format_p(p) for p in each.p_value] for each in (plain, corrected)]
    wider = (corrected.std_error > NOTICEABLE * plain.std_error).any()
    if not wider and printed[0] == printed[1]:
        return ()
    return (
        "Intervals and p-values allow for the error of the estimated variances, but the "
        "standard errors do not.",
    )


def variance_entry(
    component: VarianceComponent, inferred: MixedInference, level: float
) -> VarianceEntry:
    """Standard deviations and correlations of a component, with intervals at 95 %."""
    m, names = len(component.names), component.names
    own = {
        (each.kind, each.names): each
        for each in inferred.intervals
        if each.group == component.group and set(each.names) <= set(names)
    }
    stds = [own.get(("std", (name,))) for name in names] if level == 0.95 else [None] * m
    pairs = {
        (i, j): own.get(("correlation", (names[j], names[i]))) for i in range(m) for j in range(i)
    }
    shown = all(each is not None for each in stds)
    low, high = (np.array([getattr(s, end) if s else np.nan for s in stds])
                 for end in ("lower", "upper"))  # fmt: skip
    full = component.kind in ("full", "low_rank") and m > 1
    lower, upper = np.full((m, m), np.nan), np.full((m, m), np.nan)
    for (i, j), each in pairs.items():
        if each is not None:
            lower[i, j] = lower[j, i] = each.lower
            upper[i, j] = upper[j, i] = each.upper
    known = full and shown and all(each is not None for each in pairs.values())
    return VarianceEntry(
        group=component.group,
        names=component.effects,
        std=component.std,
        correlation=component.correlation if full else None,
        std_low=low if shown else None,
        std_high=high if shown else None,
        correlation_low=lower if known else None,
        correlation_high=upper if known else None,
        note=f"rank {component.rank}" if component.kind == "low_rank" else "",
    )


def sigma_of(component: VarianceComponent, inferred: MixedInference, level: float) -> Estimate:
    """The standard deviation of the noise."""
    interval: ParameterInterval | None = None
    if level == 0.95:
        interval = next((i for i in inferred.intervals if i.kind == "residual"), None)
    value = float(component.std[0])
    if interval is None:
        return Estimate(value)
    return Estimate(value, interval.lower, interval.upper)


def family_parameters(model: MixedModel) -> tuple[tuple[str, Estimate], ...]:
    """Parameters of the distribution of responses."""
    parameters = []
    if "dispersion_" in vars(model):
        parameters.append(("dispersion", Estimate(model.dispersion_)))
    if "noise_degrees_of_freedom_" in vars(model):
        parameters.append(("degrees of freedom", Estimate(model.noise_degrees_of_freedom_)))
    return tuple(parameters)


# ---- any model -----------------------------------------------------------------------------------


def plain_summary(model: TaskEstimator, level: float) -> Summary:
    """The summary of a model without a formula: what it shares, its mean and its variation."""
    fitted = FittedSpan.of(model)
    variance = np.array(np.nan) if fitted.noise_variance is None else fitted.noise_variance
    facts: tuple[tuple[str, str], ...] = ()
    if fitted.rank is not None:
        facts = (("Rank", str(fitted.rank)),)
    effects, formula = vars(model).get("slopes"), ""
    if isinstance(effects, Effects):
        facts, formula = facts + weight_facts(effects), effects.formula
    return Summary(
        title="Mixed model with robust noise" if formula else TITLES[model.shares],
        formula=formula,
        call="" if formula else call_text(model),
        family=model.response_family().name,
        link=LINKS.get(model.response_family().name, "identity"),
        n_rows=vars(model).get("n_rows_"),
        groups=((group_name(model), len(model.tasks_)),),
        facts=facts,
        level=level,
        fixed=mean_table(model, fitted, level),
        fixed_title="Fixed effects" if formula else MEANS_OF[model.shares == "population"],
        variances=plain_variances(model),
        sigma=None if np.isnan(variance).any() else Estimate(float(np.sqrt(np.mean(variance)))),
        family_parameters=family_parameters(model),
        span=span_words(model),
        notes=(*class_notes(model), *notes_on_fit(model)),
    )


def call_text(model: TaskEstimator) -> str:
    """How a user would construct the model, in one line."""
    shown = type(model)(**typed_parameters(model))
    return " ".join(repr(shown).split())


class _Written(str):
    """A string that is shown in place of a value, without quotation marks."""

    __repr__ = str.__str__


def typed_parameters(model: TaskEstimator) -> dict[str, Any]:
    """The parameters without those that a command or a fitted table gave to the model."""
    params = model.get_params(deep=False)
    columns = params.get("columns")
    if isinstance(columns, TableColumns):
        del params["columns"]
        if params.get("task_column") == columns.task:
            params.pop("task_column", None)
    elif isinstance(columns, Columns):
        plain = Columns()
        changed = [
            f"{one.name}={getattr(columns, one.name)!r}"
            for one in fields(columns)
            if getattr(columns, one.name) != getattr(plain, one.name)
        ]
        params["columns"] = _Written(f"Columns({', '.join(changed)})")
        if not changed:
            del params["columns"]
    return params


def mean_table(model: TaskEstimator, fitted: FittedSpan, level: float) -> FixedTable | None:
    """Coefficients of the mean task, with standard errors where the model has them."""
    if fitted.mean_coef is None or fitted.mean_intercept is None:
        coef, intercept = model.coef_.mean(axis=0), float(model.intercept_.mean())
    else:
        coef, intercept = fitted.mean_coef, float(fitted.mean_intercept)
    names = tuple(map(str, model.coef_names_))
    if model.fit_intercept:
        names, coef = (INTERCEPT, *names), np.append(intercept, coef)
    if model.shares != "population":
        return FixedTable(names=names, estimate=coef)
    std = model.mean_coef_std_
    if model.fit_intercept:
        std = np.append(model.mean_intercept_std_, std)
    reach = std * t_quantile(0.5 + level / 2, np.full(len(std), np.inf))
    return FixedTable(
        names=names, estimate=coef, std_error=std, low=coef - reach, high=coef + reach
    )


def plain_variances(model: TaskEstimator) -> tuple[VarianceEntry, ...]:
    """Standard deviations between tasks of the coefficients that vary, if these are modelled."""
    if model.shares != "population" or model._uncertainty_.between is None:
        return ()
    covariance = covariance_between_tasks(model)
    varies = np.flatnonzero(np.diag(covariance) > 0)
    names = tuple(coefficient_names(model)[i] for i in varies)
    if not names:
        return ()
    std = np.sqrt(np.diag(covariance)[varies])
    correlation = np.clip(covariance[np.ix_(varies, varies)] / np.outer(std, std), -1.0, 1.0)
    off = np.abs(correlation - np.eye(len(std))).max()
    together = correlation if off > SMALLEST_CORRELATION else None
    return (VarianceEntry(group_name(model), names, std, together),)


def span_words(model: TaskEstimator) -> tuple[str, ...]:
    """What the tasks share, in sentences."""
    if along := directions_words(model):
        view = CoefficientView(model)
        along = (*along, *view.directions.sentences(view.names))
    return along


def directions_words(model: TaskEstimator) -> tuple[str, ...]:
    """How many directions tasks share, in a sentence, if they share any."""
    fitted = FittedSpan.of(model)
    if not fitted.rank or fitted.representation is None or model.shares == "prior":
        return ()
    d, k = fitted.representation.shape
    if not k or fitted.task_weights is None or not fitted.task_weights.any():
        return ()
    if k == d:
        return (f"Coefficients of tasks differ in all directions of the {d} features.",) * (d > 1)
    directions, features = f"direction{'s' * (k > 1)}", f"feature{'s' * (d > 1)}"
    return (f"Coefficients of tasks differ along {k} shared {directions} of {d} {features}.",)


def noise_notes(model: TaskEstimator) -> tuple[str, ...]:
    """How the noise differs between tasks, if it does, in a sentence."""
    variance = FittedSpan.of(model).noise_variance
    if variance is None or not np.isfinite(variance).all() or not np.ptp(variance):
        return ()
    low, median, high = (f"{value:.3g}" for value in np.sqrt(np.quantile(variance, [0, 0.5, 1])))
    return (
        f"The noise differs between tasks: its standard deviation is {low} to {high}, with median "
        f"{median}. The residual above is the root of the mean variance.",
    )


def class_notes(model: TaskEstimator) -> tuple[str, ...]:
    """Which of two words counts as 1, if the responses were words."""
    columns, classes = vars(model).get("columns_"), vars(model).get("classes_")
    if classes is not None and len(classes) == 2 and classes.dtype.kind in "OUT":
        return tuple(counted(classes.tolist()))
    return () if columns is None else tuple(counted(columns.classes))


def rows_left_out(model: TaskEstimator) -> tuple[str, ...]:
    """How many rows of the table were left out of the fit, if any, in a sentence."""
    n = vars(model).get("n_rows_dropped_", 0)
    if not n:
        return ()
    lacking, columns = "with missing values", vars(model).get("columns_")
    if columns is not None and columns.encoding.missing == "indicator":
        wanted = [columns.target or "the response", *columns.task_columns]
        lacking = f"without a value of {' or '.join(wanted)}"
    return (f"{n:,} row{'s' * (n != 1)} {lacking} {'was' if n == 1 else 'were'} left out.",)


def notes_on_fit(model: TaskEstimator) -> tuple[str, ...]:
    """What the fit cannot estimate for lack of rows, and whether it converged."""
    stopped = (convergence(model),) * hasattr(model, "converged_")
    return noise_notes(model) + saturation_notes(model) + stopped


def convergence(model: TaskEstimator) -> str:
    """A sentence on whether the fit converged."""
    fitted = FittedSpan.of(model)
    if fitted.converged is False:
        return "The fit did not converge: the estimates are where it was stopped."
    unsure = fitted.message if model.shares == "population" else None
    return unsure or "The fit converged."
