"""Standard errors, tests and intervals for the fixed effects of a mixed model.

The estimates b have the covariance V(theta) = (sum Z'S^-1 Z)^-1 at the fitted variance parameters
theta, whose own covariance A is the inverse of the curvature of -log L. A contrast l'b is compared
with a t distribution on Satterthwaite's degrees of freedom,

    2 (l'Vl)^2 / g'Ag,     g = d l'Vl / d theta,

the number that a scaled chi-square variable with the mean and the variance of l'Vl has. Several
contrasts together are compared with an F distribution, whose second degrees of freedom match the
mean of the sum of squares of their independent t statistics (Fai and Cornelius, 1996; lmerTest).

V leaves out that theta is estimated. To first order its error moves b by J'(error), J = db/dtheta,
which adds J'AJ to the covariance of b; and V(theta) is too small by as much on average (Kackar and
Harville, 1984; Kenward and Roger, 1997). J is zero where b does not depend on theta, as if all
tasks have the same features and each of these varies. Elsewhere tests with V reject a little too
often if tasks are few and slopes vary; ``corrected`` adds both terms, with J as it is in the data
and not its expectation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sharedspan.inference.curvature import likelihood_curvature
from sharedspan.mixed_model.objective import MixedObjective

MOST_PARAMETERS = 60  # variance parameters whose error is taken into account
INDEPENDENT = 1e-8  # share of the largest variance that a further contrast must have of its own
EQUAL_DEGREES = 1e-8


class ContrastTest(NamedTuple):
    """Test that some contrasts of the fixed effects are all zero."""

    statistic: float  # F
    numerator: int  # degrees of freedom: contrasts that are not combinations of others
    denominator: float
    p_value: float


@dataclass(frozen=True)
class FixedEffects:
    """Estimates of the fixed effects, with what tests of them need.

    With the covariance A (q, q) of the variance parameters and the derivatives J of V in them, J'AJ
    is what their error adds to the covariance. Without J, degrees of freedom are infinite.
    """

    names: tuple[str, ...]
    estimate: np.ndarray  # (f,)
    covariance: np.ndarray  # (f, f), V
    jacobian: np.ndarray | None = None  # (q, f, f), J
    theta_covariance: np.ndarray | None = None  # A
    variance_error: np.ndarray | None = None  # (f, f), J'AJ
    plain_covariance: np.ndarray | None = None  # V, if ``covariance`` contains this error
    stored_axes = (
        "estimate:f covariance:ff jacobian:qff theta_covariance:qq variance_error:ff "
        "plain_covariance:ff"
    )

    def corrected(self) -> FixedEffects:
        """Fixed effects with a covariance that contains the error of the variance parameters.

        Degrees of freedom remain those of the plain one, so intervals only become wider.
        """
        if self.variance_error is None:
            return self
        covariance = self.covariance + 2 * self.variance_error
        return replace(
            self, covariance=covariance, variance_error=None, plain_covariance=self.covariance
        )

    @property
    def std_error(self) -> np.ndarray:
        """Standard errors, (f,)."""
        return np.sqrt(np.maximum(np.diag(self.covariance), 0.0))

    @property
    def statistic(self) -> np.ndarray:
        """Estimates over their standard errors, t or z, (f,)."""
        undefined = np.full(len(self.estimate), np.nan)
        std = self.std_error
        return np.divide(self.estimate, std, out=undefined, where=std > 0)

    @property
    def p_value(self) -> np.ndarray:
        """Two-sided p-values of the effects, (f,)."""
        return two_sided_p(self.statistic, self.degrees())

    def degrees(self, contrasts: Any = None) -> np.ndarray:
        """Satterthwaite's degrees of freedom of single effects, or of contrasts (m, f), (m,)."""
        L = self._contrasts(contrasts)
        plain = self.covariance if self.plain_covariance is None else self.plain_covariance
        variance = np.einsum("mf,fg,mg->m", L, plain, L)
        if self.jacobian is None or self.theta_covariance is None:
            return np.full(len(L), np.inf)
        g = np.einsum("mf,qfg,mg->mq", L, self.jacobian, L)
        spread = np.maximum(np.einsum("mq,qr,mr->m", g, self.theta_covariance, g), 0.0)
        infinite = np.full(len(L), np.inf)
        return np.divide(2 * variance**2, spread, out=infinite, where=spread > 0)

    def interval(self, level: float = 0.95, contrasts: Any = None) -> np.ndarray:
        """Confidence intervals of single effects, or of contrasts (m, f), (m, 2)."""
        L = self._contrasts(contrasts)
        centre = L @ self.estimate
        std = np.sqrt(np.maximum(np.einsum("mf,fg,mg->m", L, self.covariance, L), 0.0))
        reach = std * t_quantile(0.5 + level / 2, self.degrees(contrasts))
        return np.column_stack([centre - reach, centre + reach])

    def test(self, contrasts: Any) -> ContrastTest:
        """Test that contrasts (m, f) or (f,) are zero, all together."""
        L = self._contrasts(contrasts)
        variance, axes = np.linalg.eigh(L @ self.covariance @ L.T)
        used = variance > max(INDEPENDENT * variance[-1], 0.0)
        count = int(used.sum())
        if not count:
            return ContrastTest(np.nan, 0, np.nan, np.nan)
        independent = axes[:, used].T @ L
        squares = (independent @ self.estimate) ** 2 / variance[used]
        statistic = float(squares.mean())
        denominator = f_degrees(self.degrees(independent))
        return ContrastTest(statistic, count, denominator, f_tail(statistic, count, denominator))

    def _contrasts(self, contrasts: Any) -> np.ndarray:
        """Contrasts as a matrix (m, f); by default each effect separately."""
        if contrasts is None:
            return np.eye(len(self.estimate))
        L = np.atleast_2d(np.asarray(contrasts, dtype=float))
        if L.shape[1] != len(self.estimate):
            raise ValueError(
                f"A contrast has {L.shape[1]} numbers, but the model has {len(self.estimate)} "
                f"fixed effects: give one number for each of {', '.join(self.names)}."
            )
        return L


def fixed_effects(objective: MixedObjective, names: tuple[str, ...]) -> FixedEffects:
    """The fixed effects of a fitted model, with what the error of its variances does to them."""
    theta = objective.theta
    estimate, covariance = objective.fixed(theta)
    if len(theta) > MOST_PARAMETERS:
        return FixedEffects(names, estimate, covariance)
    curvature = likelihood_curvature(objective, theta, restricted=objective.restricted)
    J, A = curvature.fixed, curvature.theta_covariance
    return FixedEffects(names, estimate, covariance, curvature.fixed_covariance, A, J.T @ A @ J)


def f_degrees(degrees: np.ndarray) -> float:
    """Denominator of an F test whose independent t statistics have these degrees of freedom (m,).

    The mean of the squares of the t statistics, sum of nu / (nu - 2), is that of F.
    """
    least, most = degrees.min(), degrees.max()
    if np.isinf(least) or most - least < EQUAL_DEGREES:
        return float(least)
    if least <= 2:
        return 2.0
    excess = float(np.sum(2 / (degrees - 2)))
    return 2 * (excess + len(degrees)) / excess


def two_sided_p(statistic: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """The probability that |t| is larger than that of the statistics; infinite degrees: normal."""
    from scipy.special import betainc, erfc

    t, nu = np.abs(statistic), np.where(np.isfinite(degrees), degrees, 1.0)
    with np.errstate(over="ignore"):
        tail = betainc(nu / 2, 0.5, nu / (nu + t**2))
    return np.where(np.isfinite(degrees), tail, erfc(t / np.sqrt(2)))


def t_quantile(probability: float, degrees: np.ndarray) -> np.ndarray:
    """Quantiles of t distributions; infinite degrees of freedom: normal."""
    from scipy.special import ndtri, stdtrit

    finite = np.isfinite(degrees)
    quantile = stdtrit(np.where(finite, degrees, 1.0), probability)
    return np.where(finite, quantile, ndtri(probability))


def f_tail(statistic: float, numerator: int, denominator: float) -> float:
    """The probability that F is larger than the statistic; an infinite denominator: chi-square."""
    from scipy.special import chdtrc, fdtrc

    if np.isinf(denominator):
        return float(chdtrc(numerator, numerator * statistic))
    return float(fdtrc(numerator, denominator, statistic))
