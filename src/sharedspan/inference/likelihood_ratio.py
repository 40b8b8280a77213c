"""Likelihood-ratio comparison of two mixed models of the same rows.

Twice the gain in log likelihood of the larger model is compared with a chi-square distribution
whose degrees of freedom are the further parameters. But a variance is on the boundary of its range
if it is zero under the smaller model. If one effect more varies, with k further covariances, the
null distribution then is an equal mixture of chi-square distributions with k and with k + 1 degrees
of freedom (Self and Liang, 1987; Stram and Lee, 1994); with several effects more, the weights
depend on the design, and the null distribution has to be simulated.

Restricted likelihoods are those of contrasts that depend on the fixed effects, so they compare only
models with the same fixed effects.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sharedspan.inference.fitted_likelihood import FittedLikelihood

WIDTH = 80  # columns of the text
NO_GAIN = 1e-10  # of a statistic, relative to the deviance: rounding
SMALLEST_PRINTED_P = 2.2e-16


@dataclass(frozen=True)
class ComparedModel:
    """One line of a comparison."""

    name: str
    n_parameters: int
    n_rows: int
    deviance: float

    @property
    def log_likelihood(self) -> float:
        return -0.5 * self.deviance

    @property
    def aic(self) -> float:
        return self.deviance + 2 * self.n_parameters

    @property
    def bic(self) -> float:
        return self.deviance + math.log(self.n_rows) * self.n_parameters


@dataclass(frozen=True)
class LikelihoodRatio:
    """A likelihood ratio test of a smaller model within a larger one.

    Attributes
    ----------
    models : tuple of two ComparedModel
        The smaller one first.
    statistic : float
        Twice the gain in log likelihood.
    degrees : int
        Parameters that the larger model has more.
    p_value : float
        By the distribution that ``null`` describes; not a number if the models are not nested.
    chi_square_p_value : float
        By the chi-square distribution with all ``degrees``, as other software prints it.
    restricted : bool
        Whether the likelihoods are restricted ones.
    null : str
        The distribution under the smaller model, in words.
    notes : tuple of str
        What else has to be said, in words.
    """

    models: tuple[ComparedModel, ComparedModel]
    statistic: float
    degrees: int
    p_value: float
    chi_square_p_value: float
    restricted: bool
    null: str
    notes: tuple[str, ...] = ()

    def to_text(self) -> str:
        """The comparison as a table of at most 80 columns, and what it means."""
        lines = [
            _wrapped(f"{i}: {model.name}", indent="   ")
            for i, model in enumerate(self.models, start=1)
        ]
        lines += ["", "  params        AIC        BIC     logLik   deviance    chisq  df  p-value"]
        for i, model in enumerate(self.models, start=1):
            numbers = model.aic, model.bic, model.log_likelihood, model.deviance
            line = f"{i} {model.n_parameters:6d}" + "".join(f"{x:11.2f}" for x in numbers)
            if i == 2:
                line += f"{self.statistic:9.3f}{self.degrees:4d}  {p_text(self.p_value)}"
            lines.append(line)
        kind = "restricted likelihood (REML)" if self.restricted else "maximum likelihood"
        words = " ".join([f"By {kind}.", self.null, *self.notes])
        return "\n".join([*lines, "", _wrapped(words)])

    __str__ = to_text


def compare_likelihoods(
    a: FittedLikelihood, b: FittedLikelihood, *, simulated: np.ndarray | None = None
) -> LikelihoodRatio:
    """Compare two models of the same rows; the order does not matter.

    Parameters
    ----------
    a, b : FittedLikelihood
        If their fixed effects differ, both with the deviance by maximum likelihood.
    simulated : ndarray of shape (n,), optional
        Statistics of responses that were simulated from the smaller model (``simulated_null``).
    """
    small, large = sorted((a, b), key=lambda model: model.n_parameters)
    if small.n_rows != large.n_rows:
        raise ValueError(
            f"The models were fitted to {a.n_rows} and to {b.n_rows} rows, and likelihoods of "
            "different rows cannot be compared: fit both to the same table, for instance to the "
            "rows that have no missing values in the columns of either."
        )
    same_fixed = set(small.fixed) == set(large.fixed)
    restricted = a.restricted and b.restricted and same_fixed
    deviances = [_deviance(model, restricted) for model in (small, large)]
    gain, degrees = deviances[0] - deviances[1], large.n_parameters - small.n_parameters
    statistic = gain if gain > NO_GAIN * abs(deviances[1]) else 0.0
    p_value, chi_square, null = _test(small, large, statistic, simulated)
    models = tuple(
        ComparedModel(model.name, model.n_parameters, model.n_rows, deviance)
        for model, deviance in zip((small, large), deviances, strict=True)
    )
    return LikelihoodRatio(
        models=(models[0], models[1]),
        statistic=statistic,
        degrees=degrees,
        p_value=p_value,
        chi_square_p_value=chi_square,
        restricted=restricted,
        null=null,
        notes=tuple(_notes(a, b, same_fixed)),
    )


def simulated_null(
    statistic: Callable[[np.random.Generator], float],
    *,
    n: int = 1000,
    seed: int | np.random.Generator | None = None,
) -> np.ndarray:
    """Statistics (n,) under the smaller model.

    Parameters
    ----------
    statistic : callable of Generator
        Simulates responses from the smaller model, fits both models to them, and returns twice the
        gain in log likelihood.
    n : int
    seed : int or Generator, optional
    """
    return np.array([statistic(rng) for rng in np.random.default_rng(seed).spawn(n)])


def _deviance(model: FittedLikelihood, restricted: bool) -> float:
    deviance = model.restricted_deviance if restricted else model.deviance
    if deviance is None:
        kind = "restricted" if restricted else "maximum"
        method = "'reml'" if restricted else "'ml'"
        raise ValueError(
            f"The model {model.name} has not been fitted by {kind} likelihood, which this "
            f"comparison needs: fit it again with method={method}."
        )
    return deviance


def _notes(a: FittedLikelihood, b: FittedLikelihood, same_fixed: bool) -> list[str]:
    """What else has to be said of the likelihoods."""
    refitted = [model.restricted for model in (a, b)]
    if not any(refitted) or (all(refitted) and same_fixed):
        return []
    which = "Both models were" if all(refitted) else "One model was"
    why = "one of them was fitted so" if same_fixed else "their fixed effects differ"
    return [f"{which} refitted by maximum likelihood, since {why}."]


def _test(
    small: FittedLikelihood,
    large: FittedLikelihood,
    statistic: float,
    simulated: np.ndarray | None,
) -> tuple[float, float, str]:
    """The p-value, that of plain chi-square, and the null distribution in words."""
    nested = (
        set(small.fixed) <= set(large.fixed)
        and small.variances <= large.variances
        and small.covariances <= large.covariances
    )
    degrees = large.n_parameters - small.n_parameters
    if not nested or degrees == 0:
        why = "Neither model contains the other" if not nested else "The models are of equal size"
        return math.nan, math.nan, f"{why}, so there is no test: compare AIC or BIC."
    chi_square = chi_square_tail(statistic, degrees)
    if simulated is not None:
        count = len(simulated)
        p = (1 + int(np.sum(simulated >= statistic))) / (count + 1)
        return p, chi_square, f"The null distribution is that of {count} simulated data sets."
    new = sorted(large.variances - small.variances)
    if small.low_rank or large.low_rank:
        words = _chi_square_words(degrees) + (
            ", which is a rough guide where the rank of a covariance is tested: simulate the null."
        )
        return chi_square, chi_square, words
    if not new:
        return chi_square, chi_square, _chi_square_words(degrees) + "."
    if len(new) > 1:
        words = (
            f"{len(new)} variances are zero under the smaller model, on the boundary of their "
            f"range. {_chi_square_words(degrees)}, which makes p too large: simulate the null "
            "distribution."
        )
        return chi_square, chi_square, words
    (group, effect), fewer = new[0], degrees - 1
    p = 0.5 * (chi_square_tail(statistic, fewer) + chi_square)
    words = (
        f"The variance of {effect} between levels of {group} is zero under the smaller model, on "
        "the boundary of its range: the null distribution is an equal mixture of chi-square "
        f"distributions with {fewer} and {degrees} degrees of freedom."
    )
    return p, chi_square, words


def _chi_square_words(degrees: int) -> str:
    plural = "degree" if degrees == 1 else "degrees"
    return f"The null distribution is chi-square with {degrees} {plural} of freedom"


def _wrapped(text: str, indent: str = "") -> str:
    """Text in lines of at most 80 columns."""
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def chi_square_tail(statistic: float, degrees: int) -> float:
    """The probability of a statistic as large; without degrees of freedom all are zero."""
    from scipy.special import chdtrc

    if degrees == 0:
        return float(statistic <= 0)
    return float(chdtrc(degrees, statistic))


def p_text(p: float) -> str:
    """A p-value for a table."""
    if math.isnan(p):
        return "-"
    return f"{p:.3g}" if p >= SMALLEST_PRINTED_P else f"< {SMALLEST_PRINTED_P}"
