"""What is known about a fitted mixed model besides its estimates: small enough to be saved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sharedspan.inference.fixed_effects import FixedEffects
from sharedspan.inference.variance_intervals import ParameterInterval
from sharedspan.mixed_model.objective import VarianceComponent

SINGULAR = 1e-4  # of a standard deviation in units of the noise, that counts as zero
EDGE = 1e-5  # smallest eigenvalue of correlations that are not at the edge


@dataclass(frozen=True)
class GroupEffects:
    """Effects of the levels of a crossed or an outer group."""

    group: str
    labels: tuple[str, ...]
    names: tuple[str, ...]  # of the effects
    effects: np.ndarray  # (levels, v) conditional means
    std: np.ndarray  # (levels, v) conditional standard deviations
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
    notes : tuple of str
        What is singular, and fixed effects that were left out, in sentences.
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
    notes: tuple[str, ...] = ()
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


def singular_words(
    group: str, names: tuple[str, ...], covariance: np.ndarray, kind: str
) -> str | None:
    """What is singular about effects, in a sentence; None if nothing is.

    Parameters
    ----------
    group : str
    names : tuple of str
    covariance : ndarray of shape (m, m)
        Over the noise variance, for features of a standard deviation near one that are centred
        where that makes no difference to the model.
    kind : str
        Of the block; one of low rank is meant to be singular.
    """
    std = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    zero = [name for name, size in zip(names, std, strict=True) if size < SINGULAR]
    if zero:
        return f"The standard deviation of {', '.join(zero)} ({group}) is zero."
    if kind == "full" and is_singular(covariance / np.outer(std, std)):
        return (
            f"The random effects of {group} are linear combinations of each other: their "
            "correlations are on the boundary of what is possible."
        )
    return None


def is_singular(correlation: np.ndarray) -> bool:
    """Whether effects with these correlations (m, m) are combinations of each other."""
    return len(correlation) > 1 and float(np.linalg.eigvalsh(correlation)[0]) < EDGE
