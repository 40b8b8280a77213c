"""Noise whose variance grows with the fitted value.

A row with the fitted value eta has the noise variance

    s2 exp(c s(eta)),     s(eta) = log(0.05 + max((eta - low) / (high - low), 0)),

with low and high the 1 and 99 percent quantiles of the fitted values: a power of the distance from
the lower end, as nlme's varPower has it. Let e_i^2 be squares whose means are the variances, those
of leave-one-out errors times 1 - leverage, and w_i weights. s2 is the mean of e_i^2 / exp(c s_i),
and the log likelihood

    -1/2 [c sum w_i s_i + W log sum w_i e_i^2 exp(-c s_i)] + constant,     W = sum w_i,

is concave in c: its slope is W / 2 times the mean of s under the weights w_i e_i^2 exp(-c s_i),
less the mean under w_i.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

LOWEST = 0.05  # the distance from the lower end, over the range, that a variance is taken at
LARGEST_EXPONENT = 10.0
ENDS = 0.01, 0.99  # quantiles of the fitted values


@dataclass(frozen=True)
class VarianceFunction:
    """The noise variance as a function of the fitted value, in standard units."""

    exponent: float  # c
    low: float
    high: float
    scale: float  # the variance where s is zero

    @classmethod
    def fitted(
        cls, eta: np.ndarray, squares: np.ndarray, weight: np.ndarray
    ) -> tuple[VarianceFunction, float]:
        """The maximum-likelihood function of scale one, and its gain over a constant variance.

        Parameters
        ----------
        eta, squares, weight : ndarray of shape (rows,)
            Fitted values, squares of errors, and weights of the rows.
        """
        low, high = np.quantile(eta, ENDS, weights=weight, method="inverted_cdf")
        function = cls(0.0, float(low), float(high), 1.0)
        exponent, gain = fit_exponent(squares, function.log_distance(eta), weight)
        return replace(function, exponent=exponent), gain

    def __call__(self, eta: np.ndarray) -> np.ndarray:
        """Noise variances at fitted values eta, of the same shape."""
        return self.scale * np.exp(self.exponent * self.log_distance(eta))

    def log_distance(self, eta: np.ndarray) -> np.ndarray:
        """s(eta); zero everywhere if all rows have the same fitted value."""
        if not self.high > self.low:
            return np.zeros_like(eta)
        return np.log(LOWEST + np.maximum((eta - self.low) / (self.high - self.low), 0.0))


def fit_exponent(squares: np.ndarray, s: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """The maximum-likelihood exponent c, and its gain in log likelihood over c = 0.

    Parameters
    ----------
    squares, s, weight : ndarray of shape (rows,)
        Squares of errors, s at the fitted values, and weights of the rows.
    """
    from scipy.optimize import brentq

    weighted, total = weight * squares, float(weight.sum())
    mean = float(weight @ s) / total
    if not (weighted.sum() > 0 and np.ptp(s) > 0):
        return 0.0, 0.0

    def slope(c: float) -> float:
        tilted = weighted * np.exp(-c * (s - mean))
        return float(tilted @ (s - mean) / tilted.sum())

    if slope(LARGEST_EXPONENT) >= 0:
        c = LARGEST_EXPONENT
    elif slope(-LARGEST_EXPONENT) <= 0:
        c = -LARGEST_EXPONENT
    else:
        c = float(brentq(slope, -LARGEST_EXPONENT, LARGEST_EXPONENT))
    tilted = weighted * np.exp(-c * (s - mean))
    return c, 0.5 * total * math.log(weighted.sum() / tilted.sum())
