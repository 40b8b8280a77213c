"""Standard deviations and correlations of a mixed model, with quick and with simulated intervals.

Intervals from the curvature of the likelihood (Wald's) are symmetric in the logarithm of a standard
deviation and in Fisher's transformation of a correlation. ``profile.py`` has those from the
likelihood itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from sharedspan.inference.curvature import likelihood_curvature
from sharedspan.mixed_model.objective import MixedObjective, VarianceComponent

FIXED_GROUP = "Fixed effects"
LARGEST_LOG_REACH = 5.0  # of an interval of the logarithm of a standard deviation


@dataclass(frozen=True)
class ParameterInterval:
    """An interval of one parameter."""

    kind: str  # "std", "correlation", "residual" or "fixed"
    group: str  # what the effect varies between
    names: tuple[str, ...]  # the effect, or the two effects of a correlation
    estimate: float
    lower: float
    upper: float


@dataclass(frozen=True)
class VarianceParameter:
    """A standard deviation or a correlation: which it is, and the indices of its numbers."""

    kind: str  # "std", "correlation" or "residual"
    group: str
    names: tuple[str, ...]
    component: int  # the place of the variance component
    rows: tuple[int, ...]  # one effect of the component, or two in ascending order

    def value(self, components: Sequence[VarianceComponent]) -> float:
        """The parameter, not a number for the correlation of an effect that does not vary."""
        component = components[self.component]
        if self.kind == "correlation":
            return float(component.correlation[self.rows])
        return float(component.std[self.rows[0]])


def variance_parameters(components: Sequence[VarianceComponent]) -> list[VarianceParameter]:
    """All standard deviations and correlations: for each component those of its effects in turn."""
    parameters = []
    for at, component in enumerate(components):
        kind = "residual" if component.kind == "residual" else "std"
        for i, name in enumerate(component.names):
            parameters.append(VarianceParameter(kind, component.group, (name,), at, (i,)))
        # A block of rank one has no correlations but plus and minus one.
        if component.kind == "full" or component.rank > 1:
            for rows in combinations(range(len(component.names)), 2):
                pair = component.names[rows[0]], component.names[rows[1]]
                parameters.append(VarianceParameter("correlation", component.group, pair, at, rows))
    return parameters


def theta_slices(components: Sequence[VarianceComponent]) -> list[slice]:
    """The slice of theta that belongs to each component."""
    ends = np.cumsum([len(component.free_entries[0]) for component in components]).tolist()
    return [slice(begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def component_factor(theta: np.ndarray, component: VarianceComponent) -> np.ndarray:
    """The factor F (m, k) of a component from its part of theta."""
    rows, columns = component.free_entries
    F = np.zeros((len(component.names), int(columns.max()) + 1))
    F[rows, columns] = theta
    return F


def value_gradient(
    parameter: VarianceParameter, theta: np.ndarray, components: Sequence[VarianceComponent]
) -> np.ndarray:
    """Derivatives of a parameter in theta, (q,); of a standard deviation of zero, none."""
    component, at = components[parameter.component], theta_slices(components)[parameter.component]
    gradient = np.zeros(len(theta))
    if parameter.kind == "residual":
        gradient[-1] = np.exp(theta[-1])
        return gradient
    F = component_factor(theta[at], component)
    by_factor, lengths = np.zeros_like(F), np.linalg.norm(F, axis=1)
    if (lengths[list(parameter.rows)] > 0).all():
        units = F / np.where(lengths > 0, lengths, 1.0)[:, None]
        if parameter.kind == "std":
            (i,) = parameter.rows
            by_factor[i] = units[i]
        else:
            i, j = parameter.rows
            value = units[i] @ units[j]
            by_factor[i] = (units[j] - value * units[i]) / lengths[i]
            by_factor[j] = (units[i] - value * units[j]) / lengths[j]
    gradient[at] = by_factor[component.free_entries]
    return gradient


def wald_intervals(
    objective: MixedObjective,
    *,
    level: float = 0.95,
    theta_covariance: np.ndarray | None = None,
) -> list[ParameterInterval]:
    """Wald intervals for all standard deviations and correlations, from the curvature at the fit.

    Parameters
    ----------
    objective : MixedObjective
    level : float
    theta_covariance : ndarray of shape (q, q), optional
        The covariance of the variance parameters, if it is known, as ``FixedEffects`` has it.
    """
    theta, covariance = objective.theta, theta_covariance
    components = objective.components(theta)
    if covariance is None:
        restricted = objective.restricted
        curvature = likelihood_curvature(objective, theta, restricted=restricted)
        covariance = curvature.theta_covariance
    z, intervals = normal_quantile(level), []
    for parameter in variance_parameters(components):
        value = parameter.value(components)
        reach = z * standard_error(parameter, theta, components, covariance)
        ends = np.array([0.0, value + reach])  # if an effect hardly varies
        if parameter.kind == "correlation":
            ends = np.array([-1.0, 1.0])
            if abs(value) < 1:
                ends = np.tanh(np.arctanh(value) + ends * reach / (1 - value**2))
        elif LARGEST_LOG_REACH * value > reach:
            ends = value * np.exp(np.array([-1.0, 1.0]) * reach / value)
        intervals.append(_interval(parameter, value, *ends))
    return intervals


def standard_error(
    parameter: VarianceParameter,
    theta: np.ndarray,
    components: Sequence[VarianceComponent],
    theta_covariance: np.ndarray,
) -> float:
    """The standard error of a parameter; at a standard deviation of zero, that of its factor."""
    g = value_gradient(parameter, theta, components)
    if parameter.kind == "std" and not g.any():
        at = theta_slices(components)[parameter.component]
        own = components[parameter.component].free_entries[0] == parameter.rows[0]
        return float(np.sqrt(np.diag(theta_covariance)[at][own].max()))
    return float(np.sqrt(max(g @ theta_covariance @ g, 0.0)))


def bootstrap_intervals(
    objective: MixedObjective,
    simulate_and_refit: Callable[[np.random.Generator], MixedObjective],
    *,
    fixed_names: Sequence[str] = (),
    n: int = 500,
    seed: int | np.random.Generator | None = None,
    level: float = 0.95,
) -> list[ParameterInterval]:
    """Intervals from fits to simulated responses: quantiles of the estimates.

    Parameters
    ----------
    objective : MixedObjective
        The fitted model.
    simulate_and_refit : callable of Generator
        Simulates responses from the fitted model, fits the model to them, and returns that fit.
    fixed_names : sequence of str
        Names of the fixed effects; if given, these have intervals too.
    n : int
        The number of fits.
    seed : int or Generator, optional
    level : float
    """
    components = objective.components(objective.theta)
    parameters = variance_parameters(components)

    def estimates(fit: MixedObjective) -> np.ndarray:
        at = fit.components(fit.theta)
        values = [parameter.value(at) for parameter in parameters]
        return np.append(values, fit.fixed(fit.theta)[0] if fixed_names else [])

    streams = np.random.default_rng(seed).spawn(n)
    simulated = np.array([estimates(simulate_and_refit(rng)) for rng in streams])
    ends = np.array([0.5 - level / 2, 0.5 + level / 2])
    # Correlations are not defined in fits in which an effect does not vary.
    lower, upper = np.array([_quantiles(column, ends) for column in simulated.T]).T
    observed = estimates(objective)
    intervals = [_interval(*each) for each in zip(parameters, observed, lower, upper, strict=False)]
    for i, name in enumerate(fixed_names, start=len(parameters)):
        numbers = float(observed[i]), float(lower[i]), float(upper[i])
        intervals.append(ParameterInterval("fixed", FIXED_GROUP, (name,), *numbers))
    return intervals


def _quantiles(values: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    values = values[np.isfinite(values)]
    return np.quantile(values, probabilities) if len(values) else np.full(2, np.nan)


def _interval(
    parameter: VarianceParameter, estimate: float, lower: float, upper: float
) -> ParameterInterval:
    names = parameter.kind, parameter.group, parameter.names
    return ParameterInterval(*names, float(estimate), float(lower), float(upper))


def normal_quantile(level: float) -> float:
    """The number of standard errors on either side of an interval of this level."""
    from scipy.special import ndtri

    if not 0 < level < 1:
        raise ValueError(f"level={level!r} is not a probability: give one such as 0.95.")
    return float(ndtri(0.5 + level / 2))
