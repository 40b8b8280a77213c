"""What is known about a fitted mixed model besides its estimates: small enough to be saved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sharedspan.inference.fixed_effects import FixedEffects
from sharedspan.inference.variance_intervals import ParameterInterval
from sharedspan.mixed_model.objective import VarianceComponent

SINGULAR = 1e-4  # of a standard deviation in units of the noise, that counts as zero


@dataclass(frozen=True)
class GroupEffects:
    """Effects of the levels of a crossed or an outer group.

    Attributes
    ----------
    group : str
    labels : tuple of str
    names : tuple of str
        Names of the effects.
    effects, std : ndarray of shape (levels, v)
        Conditional means and standard deviations.
    """

    group: str
    labels: tuple[str, ...]
    names: tuple[str, ...]
    effects: np.ndarray
    std: np.ndarray
    stored_axes = "effects:lv std:lv"


@dataclass(frozen=True)
class MixedInference:
    """Fixed effects with their tests, variance components, and measures of the fit.

    Attributes
    ----------
    fixed : FixedEffects
    components : tuple of VarianceComponent
        In the user's units.
    intervals : tuple of ParameterInterval
        Of standard deviations and correlations, from the curvature of the likelihood, at 95 %.
    n_parameters : int
        Fixed effects and variance parameters.
    residual_quantiles : ndarray of shape (5,)
        Smallest, quartiles and largest of the residuals over their standard deviation.
    fixed_variance, effect_variance, residual_variance : float
        Of the linear predictor over the rows: of its fixed part, of its random part and, for other
        families than the Gaussian, of a row's distribution on this scale (Nakagawa and others,
        2017).
    effect_names : tuple of str
        Names of the coefficients that vary between tasks.
    effects : ndarray of shape (T, v)
        Conditional means of their deviations from the fixed effects.
    effect_std : ndarray of shape (T, v)
        Conditional standard deviations, as if all other parameters were known.
    groups : tuple of GroupEffects
        Effects of further groups: crossed ones, and those that tasks are nested in.
    """

    fixed: FixedEffects
    components: tuple[VarianceComponent, ...]
    intervals: tuple[ParameterInterval, ...]
    n_parameters: int
    residual_quantiles: np.ndarray
    fixed_variance: float
    effect_variance: float
    residual_variance: float
    effect_names: tuple[str, ...]
    effects: np.ndarray
    effect_std: np.ndarray
    groups: tuple[GroupEffects, ...] = ()
    stored_axes = "residual_quantiles:r effects:Tv effect_std:Tv"

    @property
    def icc(self) -> float:
        """Share of the variance that effects of tasks have, given the fixed effects."""
        return self.effect_variance / (self.effect_variance + self.residual_variance)

    @property
    def r2_marginal(self) -> float:
        """Share of the variance that the fixed effects explain."""
        return self.fixed_variance / self._total

    @property
    def r2_conditional(self) -> float:
        """Share of the variance that fixed effects and effects of tasks explain."""
        return (self.fixed_variance + self.effect_variance) / self._total

    @property
    def _total(self) -> float:
        return self.fixed_variance + self.effect_variance + self.residual_variance

    @property
    def singular(self) -> tuple[str, ...]:
        """What is singular about the covariances of the effects, in words."""
        noise = np.sqrt(self.residual_variance)
        sentences = []
        for component in self.components[:-1] if self._has_noise else self.components:
            std = component.std
            zero = [n for n, s in zip(component.names, std, strict=True) if s < SINGULAR * noise]
            if zero:
                listed = "effects" if component.kind == "variance" else ", ".join(zero)
                sentences.append(f"The standard deviation of {listed} ({component.group}) is zero.")
            elif component.kind == "full" and is_singular(component.correlation):
                sentences.append(
                    f"Effects of {component.group} are combinations of each other: their "
                    "correlations are at the edge of what is possible."
                )
        return tuple(sentences)

    @property
    def _has_noise(self) -> bool:
        return self.components[-1].kind == "residual"


def is_singular(correlation: np.ndarray) -> bool:
    """Whether effects with these correlations (m, m) are combinations of each other."""
    return len(correlation) > 1 and float(np.linalg.eigvalsh(correlation)[0]) < SINGULAR
