"""Profile intervals for the parameters of a mixed model, as lme4's ``confint`` has them.

A value of a parameter belongs to the interval if the deviance -2 log L, minimised over all other
parameters, exceeds its overall minimum by no more than the square of the normal quantile. It is the
deviance of maximum likelihood, also for a model that was fitted by restricted likelihood.

With one parameter held (``held_parameters.py``), quasi-Newton steps minimise over the others,
from the solution at the last value and in coordinates in which the curvature at the best fit is the
identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sharedspan.inference.curvature import (
    LikelihoodCurvature,
    likelihood_curvature,
    minimised,
    off_zero,
)
from sharedspan.inference.held_parameters import HeldFixedEffect, HeldParameter, hold
from sharedspan.inference.variance_intervals import (
    FIXED_GROUP,
    ParameterInterval,
    VarianceParameter,
    normal_quantile,
    standard_error,
    variance_parameters,
)
from sharedspan.mixed_model.objective import MixedObjective

LARGEST_CORRELATION = 1 - 1e-10
NEARLY_ZERO = 1e-4  # of a standard deviation, over its standard error
SMALLEST_RESIDUAL = 1e-8  # over the estimate
LARGEST_LOG_STEP = 2.0  # of a standard deviation, to the first guess at an end
PRECISION = 1e-5  # of an end of an interval, relative to the first guess at its distance
MOST_STEPS = 60  # from the estimate outwards
GROWTH = 1.7  # of these steps


def profile_intervals(
    objective: MixedObjective, fixed_names: Sequence[str] = (), *, level: float = 0.95
) -> list[ParameterInterval]:
    """Profile intervals for all standard deviations, correlations and named fixed effects.

    Parameters
    ----------
    objective : MixedObjective
    fixed_names : sequence of str
        Names of the f fixed effects; if none are given, these have no intervals.
    level : float

    Returns
    -------
    list of ParameterInterval
        Estimates are those of ``objective``. Where the likelihood does not reach an end, it is 0
        for standard deviations, and -1 or 1 for correlations.
    """
    z, best = normal_quantile(level), _best_fit(objective)
    components = objective.components(objective.theta)
    intervals = []
    for parameter in variance_parameters(components):
        ends = _variance_ends(objective, best, parameter, z)
        names = parameter.kind, parameter.group, parameter.names
        intervals.append(ParameterInterval(*names, parameter.value(components), *ends))
    estimates, _ = objective.fixed(objective.theta)
    for j, (name, estimate) in enumerate(zip(fixed_names, estimates.tolist(), strict=False)):
        ends = _fixed_ends(objective, best, j, z)
        intervals.append(ParameterInterval("fixed", FIXED_GROUP, (name,), estimate, *ends))
    return intervals


class _BestFit(NamedTuple):
    """The fit by maximum likelihood, with its curvature."""

    theta: np.ndarray  # (q,)
    deviance: float
    curvature: LikelihoodCurvature


def _best_fit(objective: MixedObjective) -> _BestFit:
    """The fit by maximum likelihood, from that of the objective."""
    theta = objective.theta
    curvature = likelihood_curvature(objective, theta, restricted=False)
    R = curvature.whitening(np.eye(len(theta)))
    theta, deviance = minimised(lambda at: objective.deviance(at, restricted=False), theta, R)
    if objective.restricted:
        curvature = likelihood_curvature(objective, theta, restricted=False)
    return _BestFit(theta, deviance, curvature)


class _Profile:
    """The root of the increase of the deviance over its minimum, for values of one parameter.

    Calling it gives this root less the normal quantile z, which is zero at the ends.
    """

    def __init__(
        self,
        objective: MixedObjective,
        best: _BestFit,
        held: HeldParameter,
        estimate: float,
        z: float,
    ) -> None:
        self.objective, self.held, self.best, self.z = objective, held, best, z
        self.estimate, self.components = estimate, objective.components(best.theta)
        free = held.start(best.theta, estimate)
        self.R = best.curvature.whitening(held.jacobian(free, estimate))
        self.solved = {estimate: (-z, free)}

    def __call__(self, value: float) -> float:
        if value not in self.solved:
            self.solved[value] = self._solution(value)
        return self.solved[value][0]

    def _solution(self, value: float) -> tuple[float, np.ndarray]:
        """The result at a value, and free coordinates, from those of the nearest value inside.

        Beyond an end the likelihood may have further maxima, which would mislead at other values.
        """
        reach = abs(value - self.estimate)
        inside = [v for v in self.solved if abs(v - self.estimate) <= reach]
        _, start = self.solved[min(inside, key=lambda v: abs(v - value))]
        start = off_zero(start, self.components, self.best.curvature.scale)

        def deviance(free: np.ndarray) -> tuple[float, np.ndarray]:
            theta = self.held.theta(free, value)
            total, gradient = self.objective.deviance(theta, restricted=False)
            more, slope = self.held.penalty(theta, value)
            return total + more, self.held.pull_back(free, value, gradient + slope)

        free, least = minimised(deviance, start, self.R)
        return float(np.sqrt(max(least - self.best.deviance, 0.0))) - self.z, free

    def end(self, guess: float, bound: float) -> float:
        """Where the profile crosses zero beyond the estimate, near ``guess``, or the bound."""
        from scipy.optimize import brentq

        inside, outside, distance = self.estimate, guess, abs(guess - self.estimate)
        for _ in range(MOST_STEPS):
            beyond = outside >= bound if guess > self.estimate else outside <= bound
            outside = bound if beyond else outside
            if self(outside) >= 0:
                low, high = sorted((inside, outside))
                return float(brentq(self, low, high, xtol=PRECISION * distance))
            if beyond:
                break
            inside, outside = outside, outside + GROWTH * (outside - self.estimate)
        return bound


def _variance_ends(
    objective: MixedObjective, best: _BestFit, parameter: VarianceParameter, z: float
) -> tuple[float, float]:
    """The interval of a standard deviation or a correlation."""
    components = objective.components(best.theta)
    value, held = parameter.value(components), hold(parameter, components, best.curvature.scale)
    covariance = best.curvature.theta_covariance
    reach = z * standard_error(parameter, best.theta, components, covariance)
    if parameter.kind == "correlation":
        value, bounds = 0.0 if np.isnan(value) else value, (-1.0, 1.0)
        most = LARGEST_CORRELATION
        value = min(max(value, -most), most)
        fisher = np.arctanh(value) + np.array([-1, 1]) * max(reach, 0.1) / (1 - value**2)
        low, high = np.clip(np.tanh(fisher), -most, most)
        ends = []
        for guess, bound in ((low, -most), (high, most)):
            profile = _Profile(objective, best, held, value, z)
            ends.append(bound if guess == value else profile.end(guess, bound))
        low, high = (b if abs(e) >= most else e for e, b in zip(ends, bounds, strict=True))
        return float(low), float(high)
    least = SMALLEST_RESIDUAL * value if parameter.kind == "residual" else 0.0
    if value <= NEARLY_ZERO * reach:
        return 0.0, _Profile(objective, best, held, 0.0, z).end(reach, np.inf)
    steps = np.exp(np.array([-1, 1]) * min(max(reach / value, 0.01), LARGEST_LOG_STEP))
    lower = _Profile(objective, best, held, value, z).end(value * steps[0], least)
    return lower, _Profile(objective, best, held, value, z).end(value * steps[1], np.inf)


def _fixed_ends(objective: MixedObjective, best: _BestFit, j: int, z: float) -> tuple[float, float]:
    """The interval of a fixed effect."""
    estimates, covariance = objective.fixed(best.theta)
    value, reach = float(estimates[j]), z * float(np.sqrt(covariance[j, j]))
    held = HeldFixedEffect(objective, j, best.curvature.scale)
    lower, upper = (
        _Profile(objective, best, held, value, z).end(value + side * reach, side * np.inf)
        for side in (-1, 1)
    )
    return lower, upper
