"""Families of responses: how likely a response is at a linear predictor eta.

To a fit, a family is a rule for reweighting rows. At the current eta a row of weight m has the log
likelihood m l(y, eta), and its first derivative and the negative of its second are a working
residual and a working weight. Sums of rows weighted in that way pass through the Gaussian mixed
model in each iteration (``mixed_model/laplace.py``). Solvers and the mixed model do not depend on
families.

To add a family, give it a class here and a line in ``FAMILIES``. Student's t and Huber's loss are
Gaussian families whose rows get working responses closer to the fit than a large error is;
``mixed_model/robust.py`` fits them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, NamedTuple

import numpy as np

LARGEST_ETA = 300.0  # |eta| beyond which exponentials might overflow
HERMITE_POINTS = 15  # of an expectation over a normal linear predictor


class Derivatives(NamedTuple):
    """The log likelihood l of rows at eta and its derivatives, each of the shape of eta."""

    value: np.ndarray  # l, without terms that depend on y alone
    first: np.ndarray  # l'
    weight: np.ndarray  # w = -l''
    change: np.ndarray  # dw / d eta


@dataclass(frozen=True)
class Family:
    """A distribution of responses, with a link from its mean to the linear predictor."""

    name: ClassVar[str]
    reweighted: ClassVar[bool] = True  # whether rows are reweighted in each iteration
    needs: ClassVar[str] = "numbers"  # the responses that it has, in words

    def is_valid(self, y: np.ndarray) -> np.ndarray:
        """Mask of the responses that the family can have, of the shape of y."""
        return np.isfinite(y)

    def derivatives(self, y: np.ndarray, eta: np.ndarray) -> Derivatives:
        """The log likelihood of rows of weight one, and its derivatives."""
        raise NotImplementedError

    def constant(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """The terms of the log likelihood of each row that do not depend on eta."""
        return np.zeros_like(y)

    def mean(self, eta: np.ndarray) -> np.ndarray:
        """The mean of a response."""
        raise NotImplementedError

    def link(self, mean: float) -> float:
        """The linear predictor of a mean."""
        raise NotImplementedError

    def variance(self, mean: np.ndarray) -> np.ndarray:
        """The variance of a response of weight one."""
        raise NotImplementedError

    def expected_mean(self, eta: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """The mean of a response if the linear predictor is normal."""
        nodes, weights = hermite(HERMITE_POINTS)
        std = np.sqrt(np.maximum(variance, 0.0))
        return sum(w * self.mean(eta + x * std) for x, w in zip(nodes, weights, strict=True))

    def predictive_log_likelihood(
        self, y: np.ndarray, eta: np.ndarray, variance: np.ndarray
    ) -> np.ndarray:
        """The log of the likelihood of responses, averaged over a normal linear predictor."""
        nodes, weights = hermite(7)
        std = np.sqrt(np.maximum(variance, 0.0))
        values = [self.derivatives(y, eta + x * std).value for x in nodes]
        largest = np.max(values, axis=0)
        total = sum(w * np.exp(value - largest) for w, value in zip(weights, values, strict=True))
        return largest + np.log(total)


@dataclass(frozen=True)
class Gaussian(Family):
    """Normal responses of constant variance: no row is reweighted, and one iteration is enough."""

    name: ClassVar[str] = "gaussian"
    reweighted: ClassVar[bool] = False


@dataclass(frozen=True)
class Binomial(Family):
    """Shares of successes y among m trials, the weight of a row; log odds are linear.

    l = y eta - log(1 + exp(eta)).
    """

    name: ClassVar[str] = "binomial"
    needs: ClassVar[str] = (
        "classes 0 and 1, or proportions between them with the numbers of trials as sample_weight"
    )

    def is_valid(self, y: np.ndarray) -> np.ndarray:
        return (y >= 0) & (y <= 1)

    def derivatives(self, y: np.ndarray, eta: np.ndarray) -> Derivatives:
        shrunk = np.exp(-np.abs(eta))
        total = 1 / (1 + shrunk)
        p = np.where(eta > 0, total, shrunk * total)
        # 1 - p in whole digits: it decides where eta is large.
        q = np.where(eta > 0, shrunk * total, total)
        value = y * eta - np.maximum(eta, 0) - np.log1p(shrunk)
        w = p * q
        return Derivatives(value, y * q - (1 - y) * p, w, w * (q - p))

    def constant(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return log_choose(y, weight)

    def mean(self, eta: np.ndarray) -> np.ndarray:
        shrunk = np.exp(-np.abs(eta))
        return np.where(eta > 0, 1.0, shrunk) / (1 + shrunk)

    def link(self, mean: float) -> float:
        mean = min(max(mean, 1e-3), 1 - 1e-3)
        return math.log(mean / (1 - mean))

    def variance(self, mean: np.ndarray) -> np.ndarray:
        return mean * (1 - mean)


@dataclass(frozen=True)
class Probit(Binomial):
    """Shares of successes, as ``Binomial``; the normal quantile of the probability is linear.

    l = y log Phi(eta) + (1 - y) log Phi(-eta).
    """

    name: ClassVar[str] = "probit"

    def derivatives(self, y: np.ndarray, eta: np.ndarray) -> Derivatives:
        from scipy.special import log_ndtr

        eta = np.clip(eta, -LARGEST_ETA, LARGEST_ETA)
        value = first = weight = change = np.zeros_like(eta)
        for sign, share in ((1.0, y), (-1.0, 1 - y)):
            x = sign * eta
            log_p = log_ndtr(x)
            ratio = np.exp(-0.5 * x * x - 0.5 * math.log(2 * math.pi) - log_p)  # phi / Phi
            second = ratio * (x + ratio)  # of -log Phi, always positive
            third = ratio * (1 - (x + ratio) * (x + 2 * ratio))
            value = value + share * log_p
            first = first + share * sign * ratio
            weight = weight + share * second
            change = change + share * sign * third
        return Derivatives(value, first, weight, change)

    def mean(self, eta: np.ndarray) -> np.ndarray:
        from scipy.special import ndtr

        return ndtr(eta)

    def link(self, mean: float) -> float:
        from scipy.special import ndtri

        return float(ndtri(min(max(mean, 1e-3), 1 - 1e-3)))

    def expected_mean(self, eta: np.ndarray, variance: np.ndarray) -> np.ndarray:
        return self.mean(eta / np.sqrt(1 + np.maximum(variance, 0.0)))


class Counts(Family):
    """Families of counts: the logarithm of the mean is linear."""

    needs: ClassVar[str] = "counts of 0 and more, in whole numbers"

    def is_valid(self, y: np.ndarray) -> np.ndarray:
        return (y >= 0) & (y == np.floor(y))

    def mean(self, eta: np.ndarray) -> np.ndarray:
        return np.exp(np.clip(eta, -LARGEST_ETA, LARGEST_ETA))

    def link(self, mean: float) -> float:
        return math.log(max(mean, 1e-3))

    def expected_mean(self, eta: np.ndarray, variance: np.ndarray) -> np.ndarray:
        return self.mean(eta + np.maximum(variance, 0.0) / 2)

    def cdf(self, y: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """The probability of at most y."""
        raise NotImplementedError


@dataclass(frozen=True)
class Poisson(Counts):
    """Counts whose variance is their mean; l = y eta - exp(eta)."""

    name: ClassVar[str] = "poisson"

    def derivatives(self, y: np.ndarray, eta: np.ndarray) -> Derivatives:
        mean = self.mean(eta)
        return Derivatives(y * eta - mean, y - mean, mean, mean)

    def constant(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        from scipy.special import gammaln

        return -weight * gammaln(y + 1)

    def variance(self, mean: np.ndarray) -> np.ndarray:
        return mean

    def cdf(self, y: np.ndarray, mean: np.ndarray) -> np.ndarray:
        from scipy.special import pdtr

        return pdtr(y, mean)


@dataclass(frozen=True)
class NegativeBinomial(Counts):
    """Counts of variance mean + mean^2 / dispersion; the dispersion is estimated.

    l = y eta - (y + s) log(s + exp(eta)) + log Gamma(y + s) - log Gamma(s) + s log s.
    """

    dispersion: float = 1.0  # s; large for Poisson counts
    name: ClassVar[str] = "negative_binomial"

    def derivatives(self, y: np.ndarray, eta: np.ndarray) -> Derivatives:
        s = self.dispersion
        gap = eta - math.log(s)
        shrunk = np.exp(-np.abs(gap))
        share = np.where(gap > 0, 1.0, shrunk) / (1 + shrunk)  # mean / (mean + s)
        rest = np.where(gap > 0, shrunk, 1.0) / (1 + shrunk)
        log_total = np.maximum(gap, 0) + np.log1p(shrunk)  # log((mean + s) / s)
        value = y * gap - (y + s) * log_total + self._normaliser(y)
        w = (y + s) * share * rest
        return Derivatives(value, y * rest - s * share, w, w * (rest - share))

    def _normaliser(self, y: np.ndarray) -> np.ndarray:
        """Log Gamma(y + s) - log Gamma(s), without cancellation if s is large."""
        from scipy.special import betaln, gammaln

        s = self.dispersion
        return np.where(y > 0, gammaln(np.maximum(y, 1)) - betaln(np.maximum(y, 1), s), 0.0)

    def constant(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        from scipy.special import gammaln

        return -weight * gammaln(y + 1)

    def variance(self, mean: np.ndarray) -> np.ndarray:
        return mean + mean**2 / self.dispersion

    def cdf(self, y: np.ndarray, mean: np.ndarray) -> np.ndarray:
        from scipy.special import betainc

        s = self.dispersion
        return np.where(y < 0, 0.0, betainc(s, np.maximum(y, 0) + 1, s / (s + mean)))

    def with_dispersion(self, dispersion: float) -> NegativeBinomial:
        """The same family with another dispersion."""
        return replace(self, dispersion=dispersion)


@dataclass(frozen=True)
class StudentT(Gaussian):
    """Errors of Student's distribution: large ones count less; its degrees are estimated.

    z is an error over its scale s, and psi the derivative of -log f(z), with f its density.
    """

    degrees: float = 4.0
    estimated: bool = True  # whether the degrees are
    name: ClassVar[str] = "student_t"
    reweighted: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float]] = (2.1, 100.0)  # of degrees: variances are finite

    def psi(self, z: np.ndarray) -> np.ndarray:
        """(nu + 1) z / (nu + z^2)."""
        return (self.degrees + 1) * z / (self.degrees + z**2)

    def psi_slope(self, z: np.ndarray) -> np.ndarray:
        """The derivative of psi."""
        nu = self.degrees
        return (nu + 1) * (nu - z**2) / (nu + z**2) ** 2

    def log_density(self, z: np.ndarray) -> np.ndarray:
        """The log of f(z)."""
        from scipy.special import betaln

        nu = self.degrees
        constant = -betaln(nu / 2, 0.5) - 0.5 * math.log(nu)
        return constant - (nu + 1) / 2 * np.log1p(z**2 / nu)

    def fitted(
        self, squares: np.ndarray, weight: np.ndarray, scale: float, smallest: float
    ) -> tuple[StudentT, float]:
        """Maximum-likelihood estimates of the degrees of freedom and of the scale s.

        Parameters
        ----------
        squares, weight : ndarray of shape (rows,)
            Squares of errors, and sample weights.
        scale : float
            Where the search for s starts.
        smallest : float
            Lower bound of s.
        """
        from scipy.optimize import minimize
        from scipy.special import digamma

        share, errors = weight / weight.sum(), np.sqrt(squares)

        def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
            family = replace(self, degrees=math.exp(theta[0]))
            nu, z = family.degrees, errors * math.exp(-theta[1])
            value = share @ family.log_density(z) - theta[1]
            pull = float(share @ (family.psi(z) * z))
            slope = digamma((nu + 1) / 2) - digamma(nu / 2) - share @ np.log1p(z**2 / nu)
            slope = 0.5 * (nu * slope - 1 + pull)
            return -float(value), -np.array([slope, pull - 1])

        nu = math.log(self.degrees)
        low, high = map(math.log, self.bounds) if self.estimated else (nu, nu)
        result = minimize(
            loss, [nu, math.log(max(scale, smallest))], jac=True, method="L-BFGS-B",
            bounds=[(low, high), (math.log(smallest), None)], options={"ftol": 0, "gtol": 1e-9},
        )  # fmt: skip
        degrees = math.exp(result.x[0]) if self.estimated else self.degrees
        return replace(self, degrees=degrees), math.exp(result.x[1])

    @property
    def variance_ratio(self) -> float:
        """The variance of an error over s^2."""
        return self.degrees / (self.degrees - 2)

    def quantile(self, share: float) -> float:
        """The quantile of z."""
        from scipy.special import stdtrit

        return float(stdtrit(self.degrees, share))


@dataclass(frozen=True)
class Huber(Gaussian):
    """Squared errors up to a threshold, in units of their scale s, and absolute ones beyond.

    z is an error over s, and psi the derivative of the loss at z.
    """

    threshold: float = 1.345  # k: 95 % of the efficiency of least squares if errors are normal
    name: ClassVar[str] = "huber"
    reweighted: ClassVar[bool] = True

    def psi(self, z: np.ndarray) -> np.ndarray:
        """max(-k, min(z, k))."""
        return np.clip(z, -self.threshold, self.threshold)

    def psi_slope(self, z: np.ndarray) -> np.ndarray:
        """The derivative of psi."""
        return (np.abs(z) <= self.threshold).astype(float)

    def log_density(self, z: np.ndarray) -> np.ndarray:
        """The log of the density whose tails are exponential beyond the threshold."""
        from scipy.special import ndtr

        k = self.threshold
        inside = math.sqrt(2 * math.pi) * (1 - 2 * float(ndtr(-k)))
        psi = self.psi(z)
        return psi * (0.5 * psi - z) - math.log(inside + 2 / k * math.exp(-0.5 * k * k))

    def fitted(
        self, squares: np.ndarray, weight: np.ndarray, scale: float, smallest: float
    ) -> tuple[Huber, float]:
        """The scale s for which the mean of psi(z)^2 is that of normal errors, as in StudentT."""
        from scipy.optimize import brentq

        share = weight / weight.sum()

        def excess(s: float) -> float:
            """The mean of psi^2 above that of normal errors, which falls as s grows."""
            return float(share @ np.minimum(squares / s**2, self.threshold**2)) - target

        target, high = self.normal_square, math.sqrt(float(share @ squares))
        high = max(high / math.sqrt(target), smallest)
        if excess(smallest) <= 0:
            return self, smallest
        return self, max(float(brentq(excess, smallest, 1.01 * high, rtol=1e-12)), smallest)

    @property
    def normal_square(self) -> float:
        """The mean of psi(z)^2 for standard normal z."""
        from scipy.special import ndtr

        k = self.threshold
        density = math.exp(-0.5 * k * k) / math.sqrt(2 * math.pi)
        return 1 - 2 * k * density + 2 * (k * k - 1) * float(ndtr(-k))


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Gaussian(), Binomial(), Probit(), Poisson(), NegativeBinomial(), StudentT(), Huber()
    )
}  # fmt: skip


def family_of(name: str, dispersion: float | None = None) -> Family:
    """The family of a name, with its dispersion if that was estimated."""
    family = FAMILIES[name]
    if dispersion is not None and isinstance(family, NegativeBinomial):
        return family.with_dispersion(dispersion)
    return family


def log_choose(share: np.ndarray, trials: np.ndarray) -> np.ndarray:
    """The log of the number of ways to have a share of successes; zero for none or all."""
    from scipy.special import betaln

    inside = (share > 0) & (share < 1)
    successes, failures = share * trials, (1 - share) * trials
    value = np.zeros_like(share)
    value[inside] = -np.log1p(trials[inside]) - betaln(1 + successes[inside], 1 + failures[inside])
    return value


@cache
def hermite(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights (count,) of an expectation over the standard normal distribution."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return nodes, weights / weights.sum()


def suggested_family(y: np.ndarray) -> str:
    """The family that a target looks like: "binomial", "negative_binomial" or "gaussian".

    Two different values 0 and 1 are classes. Integers of 0 and more, some of them 0 or all of them
    few, are counts: those without a zero are more often amounts, years or codes.
    """
    y = np.asarray(y, dtype=float)
    low, high = float(y.min()), float(y.max())
    if low == 0 and high == 1 and bool(np.all((y == 0) | (y == 1))):
        return "binomial"
    if low == 0 and high > 1 and bool(np.all(y == np.floor(y))):
        return "negative_binomial"
    return "gaussian"
