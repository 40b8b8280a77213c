"""Tests of residuals that are uniform between 0 and 1 if the model is right, as DHARMa has them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

SIGNIFICANT = 0.05
OUTLIER_SHARE = 2 / 251  # of residuals beyond all of 250 simulations of a right model
TREND_DEGREE = 3  # of the polynomials in the rank of the prediction
SMALLEST_TAIL = 1e-15  # of a residual whose normal quantile is taken


@dataclass(frozen=True)
class ResidualTest:
    """A test of residuals, with its result in a sentence."""

    statistic: float
    p_value: float
    sentence: str

    @property
    def is_significant(self) -> bool:
        """Whether the p-value is below 0.05."""
        return self.p_value < SIGNIFICANT


@dataclass(frozen=True)
class ResidualTests:
    """Tests of residuals against those of a right model, in the manner of DHARMa.

    Attributes
    ----------
    n_rows : int
    uniformity : ResidualTest
        Kolmogorov and Smirnov's distance to the uniform distribution.
    dispersion : ResidualTest
        The mean square of the residuals' normal quantiles, which is one. Normal responses of any
        spread have about one, since their noise variance is estimated.
    outliers : ResidualTest
        The number of residuals so close to 0 or 1 that 250 simulated responses would all be on
        one side of the observed one.
    trend, spread : ResidualTest or None
        Whether the level of the residuals, or their distance from 1/2, depends on the predictions;
        None if all predictions are the same, or none were given.
    """

    n_rows: int
    uniformity: ResidualTest
    dispersion: ResidualTest
    outliers: ResidualTest
    trend: ResidualTest | None = None
    spread: ResidualTest | None = None

    @property
    def sentences(self) -> tuple[str, ...]:
        """The results in words."""
        tests = (self.uniformity, self.dispersion, self.outliers, self.trend, self.spread)
        return tuple(test.sentence for test in tests if test is not None)

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def residual_tests(residuals: np.ndarray, fitted: Any = None) -> ResidualTests:
    """Tests of simulated residuals.

    Parameters
    ----------
    residuals : ndarray of shape (rows,)
        As ``simulated_residuals`` has them; rows without a number are left out.
    fitted : array-like of shape (rows,), optional
        What residuals should not depend on: predictions of the same draw, or a column of the
        table. Effects as fitted will not do, as residuals are correlated with them.
    """
    residuals = np.asarray(residuals, dtype=float)
    known = np.isfinite(residuals)
    if fitted is not None and np.shape(fitted) != residuals.shape:
        raise ValueError(
            f"fitted has shape {np.shape(fitted)}, but there are {len(residuals)} residuals: give "
            "one number per row."
        )
    values = None if fitted is None else np.asarray(fitted, dtype=float)
    if values is not None:
        known &= np.isfinite(values)
    u = residuals[known]
    if not len(u):
        raise ValueError("There is no residual: give those of at least one row.")
    trend = spread = None
    if values is not None:
        Q = rank_polynomials(values[known])
        if Q.shape[1]:
            trend = _trend(Q, u)
            spread = _spread(Q, u)
    return ResidualTests(len(u), _uniformity(u), _dispersion(u), _outliers(u), trend, spread)


def rank_polynomials(values: np.ndarray) -> np.ndarray:
    """Orthonormal polynomials (m, k) in the ranks of numbers (m,), without the constant one."""
    from scipy.stats import rankdata

    ranks = (rankdata(values) - 0.5) / len(values)
    degree = min(TREND_DEGREE, len(np.unique(values)) - 1)
    powers = np.polynomial.legendre.legvander(2 * ranks - 1, degree)
    return np.asarray(np.linalg.qr(powers)[0][:, 1:])


def _uniformity(u: np.ndarray) -> ResidualTest:
    from scipy.stats import kstest

    result = kstest(u, "uniform")
    verdict = _verdict(
        result.pvalue,
        "There is no evidence that the residuals are not uniform",
        "The residuals are not uniform, so the model does not have the distribution of the "
        "responses",
    )
    return _test(float(result.statistic), result.pvalue, f"{verdict} (Kolmogorov-Smirnov, ")


def _dispersion(u: np.ndarray) -> ResidualTest:
    from scipy.special import chdtr, ndtri

    total = float(np.sum(ndtri(np.clip(u, SMALLEST_TAIL, 1 - SMALLEST_TAIL)) ** 2))
    below = float(chdtr(len(u), total))
    p_value, ratio = 2 * min(below, 1 - below), total / len(u)
    much = "more" if ratio > 1 else "less"
    words = f"The residual variance is {ratio:.2f} times that of the model"
    verdict = _verdict(
        p_value, f"{words}, within chance", f"{words}: responses vary {much} than it implies"
    )
    return _test(ratio, p_value, f"{verdict} (")


def _outliers(u: np.ndarray) -> ResidualTest:
    from scipy.stats import binomtest

    count = int(np.sum(np.minimum(u, 1 - u) < OUTLIER_SHARE / 2))
    p_value = binomtest(count, len(u), OUTLIER_SHARE).pvalue
    expected = OUTLIER_SHARE * len(u)
    words = f"{count:,} of {len(u):,} responses are outliers"
    verdict = _verdict(
        p_value,
        f"{words}, within chance of the {expected:.1f} of a right model",
        f"{words}, and a right model has about {expected:.1f}",
    )
    return _test(float(count), p_value, f"{verdict} (")


def _trend(Q: np.ndarray, u: np.ndarray) -> ResidualTest:
    statistic, p_value = _dependence(Q, math.sqrt(12) * (u - 0.5))
    verdict = _verdict(
        p_value,
        "There is no evidence that the mean of the residuals depends on the predictions",
        "The mean of the residuals depends on the predictions: a nonlinear effect, an interaction "
        "or a feature may be missing",
    )
    return _test(statistic, p_value, f"{verdict} (")


def _spread(Q: np.ndarray, u: np.ndarray) -> ResidualTest:
    statistic, p_value = _dependence(Q, math.sqrt(12) * (np.abs(2 * u - 1) - 0.5))
    verdict = _verdict(
        p_value,
        "There is no evidence that the spread of the residuals depends on the predictions",
        "The spread of the residuals depends on the predictions: the noise is not the same in all "
        "rows",
    )
    return _test(statistic, p_value, f"{verdict} (")


def _dependence(Q: np.ndarray, score: np.ndarray) -> tuple[float, float]:
    """The square of scores (m,) of mean 0 and variance 1 along columns of Q (m, k), chi-square."""
    from scipy.special import chdtrc

    statistic = float(np.sum((Q.T @ score) ** 2))
    return statistic, float(chdtrc(Q.shape[1], statistic))


def _verdict(p_value: float, right: str, wrong: str) -> str:
    return wrong if p_value < SIGNIFICANT else right


def _test(statistic: float, p_value: float, words: str) -> ResidualTest:
    p_value = float(min(p_value, 1.0))
    return ResidualTest(statistic, p_value, f"{words}{p_value_words(p_value)}).")


def p_value_words(p_value: float) -> str:
    """A p-value as it is printed."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"
