"""Natural cubic splines whose coefficients may all have one variance, and knots for them.

A natural cubic spline with knots k_1 < ... < k_K is linear beyond k_1 and k_K, and determined up to
a straight line by its second derivatives c (K - 2,) at the inner knots. Its roughness is

    integral of f''(x)^2 dx = c'Rc,     R tridiagonal, from the distances h of the knots.

With R = CC' and coefficients a = C'c the roughness is |a|^2. Let F be the splines of a = e_1, e_2,
..., less their regressions on 1 and x over a sample, at the values of this sample, and F = USV'.
The columns FV = US are the basis: orthogonal over the sample, to each other and to straight lines,
smooth ones large and rough ones small, with roughness |a|^2 still. So normal coefficients of equal
variance are a smoothing spline (the basis of Demmler and Reinsch, 1975). It is found by
integrating, never by inverting the roughness, which keeps the digits of the smooth columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np

N_KNOTS = 10
FEWEST_VALUES = 4  # distinct values with a spline beside the straight line
SAMPLE_SIZE = 10_000  # distinct values that knots are chosen from
SEED = 0x5DEECE66D


@dataclass(frozen=True)
class SplineBasis:
    """The penalised columns of a natural cubic spline; the straight line is a separate feature.

    Attributes
    ----------
    centre, scale : float
        Knots are values of (x - centre) / scale.
    knots : ndarray of shape (K,)
        Increasing.
    transform : ndarray of shape (K, m)
        The m columns at the knots.
    curvature : ndarray of shape (K, m)
        Their second derivatives there, zero at both ends.
    """

    centre: float
    scale: float
    knots: np.ndarray
    transform: np.ndarray
    curvature: np.ndarray
    stored_axes = "knots:n transform:nm curvature:nm"

    @classmethod
    def of(cls, values: np.ndarray, n_knots: int = N_KNOTS) -> Self:
        """The basis for a sample of values: knots at quantiles of those that are distinct.

        Fewer distinct values than ``n_knots`` are the knots themselves, and with fewer than four
        there are no columns. The columns have a total variance of one over the sample.
        """
        x = np.unique(np.asarray(values, dtype=float))
        x = x[np.isfinite(x)] + 0.0
        if len(x) < FEWEST_VALUES:
            empty = np.zeros((0, 0))
            return cls(0.0, 1.0, np.zeros(0), empty, empty)
        unit = float(np.abs(x).max())
        centre = float(np.mean(x / unit)) * unit
        scale = float(np.std(x / unit - centre / unit)) * unit
        x = (x - centre) / scale
        x = np.unique(x)
        knots = x if len(x) <= n_knots else np.quantile(x, np.linspace(0, 1, n_knots))
        curvature, level = _roughness_basis(knots)
        at_sample = _evaluate(x, knots, level, curvature)
        line = np.column_stack([np.ones(len(x)), x])
        fitted = np.linalg.lstsq(line, at_sample, rcond=None)[0]
        level = level - np.column_stack([np.ones(len(knots)), knots]) @ fitted
        _, size, axes = np.linalg.svd(at_sample - line @ fitted, full_matrices=False)
        axes = axes.T / np.sqrt(np.sum(size**2) / len(x))
        level, curvature = level @ axes, curvature @ axes
        largest = np.abs(level).argmax(axis=0)
        sign = np.sign(level[largest, np.arange(level.shape[1])])  # else it depends on LAPACK
        return cls(centre, scale, knots, level * sign, curvature * sign)

    @property
    def n_columns(self) -> int:
        """The number of columns, m."""
        return self.transform.shape[1]

    def basis(self, x: np.ndarray) -> np.ndarray:
        """The columns at values x (n,), linear beyond the knots, (n, m); NaN stays NaN."""
        x = np.asarray(x, dtype=float)
        if not self.n_columns:
            return np.zeros((len(x), 0))
        z = (x - self.centre) / self.scale
        return _evaluate(z, self.knots, self.transform, self.curvature)

    def slopes_at_ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Slopes at the first and at the last knot, in units of ``scale``, (m,) each."""
        return _slopes_at_ends(self.knots, self.transform, self.curvature)


def _roughness_basis(knots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Second derivatives and values at the knots, both (K, K - 2), of a basis of the splines.

    A spline with the coefficients a in this basis has the roughness |a|^2. The values are zero at
    the first knot, and so are the slopes.
    """
    from scipy.linalg import cholesky_banded, solve_banded

    h, K = np.diff(knots), len(knots)
    R = np.zeros((2, K - 2))  # the upper band, and the diagonal
    R[1], R[0, 1:] = (h[:-1] + h[1:]) / 3, h[1:-1] / 6
    factor = cholesky_banded(R)  # of C'
    curvature = np.zeros((K, K - 2))
    curvature[1:-1] = solve_banded((0, 1), factor, np.eye(K - 2))
    # f'' is linear between knots: integrate it twice.
    left, right = curvature[:-1], curvature[1:]
    rise = h[:, None] * (left + right) / 2
    slope = np.vstack([np.zeros((1, K - 2)), np.cumsum(rise, axis=0)])
    steps = h[:, None] * slope[:-1] + h[:, None] ** 2 * (2 * left + right) / 6
    return curvature, np.vstack([np.zeros((1, K - 2)), np.cumsum(steps, axis=0)])


def _evaluate(
    x: np.ndarray, knots: np.ndarray, level: np.ndarray, curvature: np.ndarray
) -> np.ndarray:
    """Natural splines at x (n,), given values and second derivatives at the knots, (n, m)."""
    h = np.diff(knots)
    place = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, len(h) - 1)
    width = h[place]
    inside = np.clip(x, knots[0], knots[-1])
    up = (inside - knots[place]) / width
    down = 1.0 - up
    bend = width**2 / 6
    out = down[:, None] * level[place] + up[:, None] * level[place + 1]
    out += (bend * (down**3 - down))[:, None] * curvature[place]
    out += (bend * (up**3 - up))[:, None] * curvature[place + 1]
    first, last = _slopes_at_ends(knots, level, curvature)
    out += np.minimum(x - knots[0], 0.0)[:, None] * first
    out += np.maximum(x - knots[-1], 0.0)[:, None] * last
    return out


def _slopes_at_ends(
    knots: np.ndarray, level: np.ndarray, curvature: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Slopes at the first and at the last knot, (m,) each."""
    h = np.diff(knots)
    chord = np.diff(level, axis=0) / h[:, None]
    first = chord[0] - h[0] * (2 * curvature[0] + curvature[1]) / 6
    return first, chord[-1] + h[-1] * (curvature[-2] + 2 * curvature[-1]) / 6


@dataclass
class DistinctSample:
    """A sample of the distinct values of a column, of all of them up to ``size``.

    The values with the smallest hashes: so it does not depend on the order of rows, nor on the
    parts that they are read in, and samples of parts can be merged.
    """

    size: int = SAMPLE_SIZE
    hashes: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))  # increasing

    def add(self, values: np.ndarray) -> Self:
        """Take values (n,) into account; NaN and infinite ones are left out."""
        values = np.asarray(values, dtype=float).ravel()
        values = values[np.isfinite(values)] + 0.0  # -0.0 becomes 0.0
        hashes = splitmix64(values.view(np.uint64) ^ np.uint64(SEED))
        if len(self.hashes) == self.size:
            hashes = hashes[hashes < self.hashes[-1]]
        self.hashes = np.union1d(self.hashes, hashes)[: self.size]
        return self

    def merge(self, other: DistinctSample) -> Self:
        """Take the values of another sample of the same size into account."""
        if other.size != self.size:
            raise ValueError(f"Samples of {self.size} and {other.size} values cannot be merged.")
        self.hashes = np.union1d(self.hashes, other.hashes)[: self.size]
        return self

    def values(self) -> np.ndarray:
        """The sample, increasing."""
        bits = inverse_splitmix64(self.hashes) ^ np.uint64(SEED)
        return np.sort(bits.view(float))


# Steele, Lea and Flood (2014), "Fast splittable pseudorandom number generators": a bijection, so
# distinct values have distinct hashes, and a hash gives its value back.
INCREMENT = 0x9E3779B97F4A7C15
FACTORS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def splitmix64(bits: np.ndarray) -> np.ndarray:
    """64 random bits of each number, (n,)."""
    z = bits + np.uint64(INCREMENT)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(FACTORS[0])
    z = (z ^ (z >> np.uint64(27))) * np.uint64(FACTORS[1])
    return z ^ (z >> np.uint64(31))


def inverse_splitmix64(hashes: np.ndarray) -> np.ndarray:
    """The numbers (n,) that have these hashes."""
    first, second = (np.uint64(pow(factor, -1, 1 << 64)) for factor in FACTORS)
    z = hashes ^ (hashes >> np.uint64(31)) ^ (hashes >> np.uint64(62))
    z = z * second
    z = z ^ (z >> np.uint64(27)) ^ (z >> np.uint64(54))
    z = z * first
    z = z ^ (z >> np.uint64(30)) ^ (z >> np.uint64(60))
    return z - np.uint64(INCREMENT)
