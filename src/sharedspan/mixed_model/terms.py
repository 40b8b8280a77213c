"""What each task contributes to the likelihood of a mixed model, from its Gram or from its rows.

Tasks come in chunks, whose terms are computed when they are needed and not stored: all K together
would be larger than the statistics themselves. ``likelihood.py`` has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sharedspan.kernels.mixed_terms import mixed_terms
from sharedspan.statistics.grams import Arrays, GramStatistics
from sharedspan.statistics.rows import RowStatistics, Statistics
from sharedspan.statistics.working import WorkingStatistics

SMALL = 8  # coefficients, below which a call for each small matrix costs more than its product
BUCKET_RATIO = 1.3  # tasks whose numbers of rows differ by less than this are padded to one size


@dataclass(frozen=True)
class Scaling:
    """Standard units: z = (x - centre) / scale, response (y - y_centre) / y_scale."""

    centre: np.ndarray  # (d,)
    scale: np.ndarray  # (d,), one where a feature does not vary
    y_centre: float
    y_scale: float
    stored_axes = "centre:p scale:p"

    @classmethod
    def of(
        cls, statistics: Statistics, intercept: bool, groups: Iterable[np.ndarray] = ()
    ) -> Scaling:
        """Means and deviations over all rows, within and between tasks.

        Features of one group, given by their numbers, have one scale, since their proportions
        matter: the deviation of their sum, were they independent.
        """
        share = statistics.n / statistics.n.sum()
        centre = share @ statistics.mean
        between = share @ (statistics.mean - centre) ** 2
        scale = np.sqrt(statistics.variances() + between)
        for group in groups:
            scale[group] = np.linalg.norm(scale[group])
        scale[~(scale > 0)] = 1.0
        _, (squares,) = statistics.map_shards(_response_squares)
        y_centre = float(share @ statistics.y_mean)
        variance = squares.sum() / statistics.n.sum()
        variance += share @ (statistics.y_mean - y_centre) ** 2
        level = float(np.abs(statistics.y_mean).max())
        y_scale = math.sqrt(variance) if variance > (1e-13 * level) ** 2 else 1.0
        if not intercept:
            return cls(np.zeros_like(centre), scale, 0.0, y_scale)
        return cls(centre, scale, y_centre, y_scale)

    def to_standard(self, X: np.ndarray, intercept: bool) -> np.ndarray:
        """Rows X (m, d) as [1, standardised features], (m, p)."""
        Z = (X - self.centre) / self.scale
        return np.column_stack([np.ones(len(Z)), Z]) if intercept else Z

    def from_standard(self, V: np.ndarray, intercept: bool) -> tuple[np.ndarray, np.ndarray]:
        """Slopes (T, d) and intercepts (T,) of coefficients V (T, p) in standard units."""
        slopes = V[:, int(intercept) :] / self.scale * self.y_scale
        if not intercept:
            return slopes, np.zeros(len(V))
        return slopes, self.y_centre + self.y_scale * V[:, 0] - slopes @ self.centre


def _response_squares(statistics: Statistics) -> tuple[Arrays, Arrays]:
    """|y_t|^2 of each task, centred where the statistics are, (T,)."""
    if isinstance(statistics, GramStatistics):
        _, squares = statistics.at_anchor(np.zeros_like(statistics.mean))
    else:
        weighted = statistics.weight * statistics.y**2
        squares = np.add.reduceat(weighted, statistics.starts[:-1])
    return (), (squares,)


@dataclass(frozen=True)
class Covariance:
    """C = D + LL', relative to the noise variance."""

    variances: np.ndarray  # (p,) diagonal of D
    loadings: np.ndarray  # (p, k) L

    @property
    def matrix(self) -> np.ndarray:
        """C, (p, p)."""
        return np.diag(self.variances) + self.loadings @ self.loadings.T

    def scaled(self, factor: float) -> Covariance:
        """The covariance ``factor`` C."""
        return Covariance(factor * self.variances, math.sqrt(factor) * self.loadings)

    @property
    def root(self) -> np.ndarray:
        """R (p, q) with C = RR'; zero columns of D are left out."""
        return np.column_stack([self.diagonal_root[:, self.variances > 0], self.loadings])

    @property
    def diagonal_root(self) -> np.ndarray:
        """The square root of D, (p, p)."""
        return np.diag(np.sqrt(self.variances))


class TaskTerms(NamedTuple):
    """What some tasks contribute to the likelihood at a covariance C."""

    ids: np.ndarray  # (m,)
    K: np.ndarray  # (m, p, p) Z_t' S_t^-1 Z_t
    h: np.ndarray  # (m, p) Z_t' S_t^-1 r_t
    log_determinants: np.ndarray  # (m,) log |S_t|
    squares: np.ndarray  # (m,) r_t' S_t^-1 r_t
    anchor: np.ndarray  # (m, p) a_t
    smallest: float = 0.0  # what the squares cannot be less than, but for rounding

    def right_sides(self) -> np.ndarray:
        """Z_t' S_t^-1 y_t, (m, p)."""
        return _products(self.K, self.anchor) + self.h

    def scores_and_squares(self, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """e_t (m, p), and r' S_t^-1 r (m,) of the residuals r = y_t - Z_t b."""
        gap = self.anchor - b
        moved = _products(self.K, gap)
        squares = self.squares + np.einsum("ti,ti->t", gap, moved + 2 * self.h)
        return moved + self.h, np.maximum(squares, self.smallest)


def _products(K: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """K_t v_t, (m, p)."""
    if K.shape[1] < SMALL:
        return np.einsum("tij,tj->ti", K, vectors)
    return (K @ vectors[:, :, None])[:, :, 0]


class GramTerms:
    """Terms from Grams, by the compiled kernel, chunks of ``size`` tasks in their order."""

    def __init__(
        self, statistics: GramStatistics, scaling: Scaling, precision: np.ndarray, size: int
    ) -> None:
        self.precision = precision
        self.packed, self.n, self.size = statistics.packed, statistics.n, size
        self.n_chunks = -(-len(self.n) // size)
        self.scale = 1 / scaling.scale
        first = int(statistics.centred)
        self.mean = (statistics.mean - scaling.centre) * self.scale
        # The anchor preserves the digits: only what it leaves of the responses is ever subtracted.
        self.score = precision[:, None] * statistics.g * self.scale / scaling.y_scale
        self.q = precision * statistics.q / scaling.y_scale**2
        self.anchor = np.empty((len(self.n), statistics.n_features + first))
        self.anchor[:, first:] = statistics.anchor * scaling.scale / scaling.y_scale
        if first:
            level = (statistics.y_mean - scaling.y_centre) / scaling.y_scale
            self.anchor[:, 0] = level - np.einsum("td,td->t", self.mean, self.anchor[:, 1:])

    def at(self, chunk: int, covariance: Covariance) -> TaskTerms:
        """Terms of a chunk of tasks."""
        begin = chunk * self.size
        end = min(begin + self.size, len(self.n))
        m, p = end - begin, self.anchor.shape[1]
        K, h, log_determinants, lost = empty_terms(m, p)
        active = np.flatnonzero(covariance.variances)
        mixed_terms(
            self.packed, self.n, self.mean, self.scale, self.precision, self.score, active,
            np.sqrt(covariance.variances[active]), np.ascontiguousarray(covariance.loadings),
            begin, end, K, h, log_determinants, lost,
        )  # fmt: skip
        squares = np.maximum(self.q[begin:end] - lost, 0.0)
        ids = np.arange(begin, end)
        return TaskTerms(ids, K, h, log_determinants, squares, self.anchor[begin:end])


class WorkingTerms:
    """Terms from the working statistics of a family, with the mode of each task as its anchor.

    Squares are measured from the log likelihood at the mode, and may be negative.
    """

    def __init__(self, statistics: WorkingStatistics, size: int) -> None:
        self.statistics, self.size = statistics, size
        self.n_chunks = -(-statistics.n_tasks // size)
        p = statistics.score.shape[1]
        self.unused = np.empty(0), np.empty((0, 0)), np.ones(p), np.ones(statistics.n_tasks)

    def at(self, chunk: int, covariance: Covariance) -> TaskTerms:
        """Terms of a chunk of tasks."""
        s, begin = self.statistics, chunk * self.size
        end = min(begin + self.size, s.n_tasks)
        terms = empty_terms(end - begin, s.score.shape[1])
        active = np.flatnonzero(covariance.variances)
        mixed_terms(
            s.packed, *self.unused, s.score, active,
            np.sqrt(covariance.variances[active]), np.ascontiguousarray(covariance.loadings),
            begin, end, *terms,
        )  # fmt: skip
        K, h, log_determinants, lost = terms
        ids = np.arange(begin, end)
        return TaskTerms(ids, K, h, log_determinants, -lost, s.mode[begin:end], -math.inf)


def empty_terms(m: int, p: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Memory for K, h, log |S| and what is lost of the squares."""
    return np.empty((m, p, p)), np.empty((m, p)), np.empty(m), np.empty(m)


class RowTerms:
    """Terms from the rows, for tasks with few of them: these are the anchor of zero.

    Tasks of similar size are padded to one size with rows of zeros, which change nothing.
    """

    def __init__(
        self, statistics: RowStatistics, scaling: Scaling, precision: np.ndarray, size: int
    ) -> None:
        first, cuts = int(statistics.centred), statistics.starts[1:-1]
        root = np.sqrt(statistics.weight * np.repeat(precision, np.diff(statistics.starts)))
        X = np.split(root[:, None] * statistics.X / scaling.scale, cuts)
        y = np.split(root * statistics.y / scaling.y_scale, cuts)
        level = np.sqrt(statistics.n * precision)
        mean = level[:, None] * (statistics.mean - scaling.centre) / scaling.scale
        y_mean = level * (statistics.y_mean - scaling.y_centre) / scaling.y_scale
        rows = np.array([len(part) + first for part in y])
        order, begin, p = np.argsort(rows, kind="stable"), 0, statistics.n_features + first
        self.chunks: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        while begin < len(order):
            limit = max(8, int(BUCKET_RATIO * rows[order[begin]]))
            end = int(np.searchsorted(rows[order], limit, side="right"))
            end = min(end, begin + size)
            ids = order[begin:end]
            shape = len(ids), int(max(rows[ids].max(), 1))
            F, z = np.zeros((*shape, p)), np.zeros(shape)
            for i, t in enumerate(ids):
                F[i, first : rows[t], first:] = X[t]
                z[i, first : rows[t]] = y[t]
            if first:
                F[:, 0, 0], F[:, 0, 1:], z[:, 0] = level[ids], mean[ids], y_mean[ids]
            self.chunks.append((ids, F, z))
            begin = end
        self.n_chunks = len(self.chunks)

    def at(self, chunk: int, covariance: Covariance) -> TaskTerms:
        """Terms of a chunk of tasks, from systems of the size of the rows or of the rank of C."""
        ids, F, z = self.chunks[chunk]
        U = F @ covariance.root
        if U.shape[2] < U.shape[1]:
            A = U.transpose(0, 2, 1) @ U
            diagonal = np.arange(A.shape[1])
            A[:, diagonal, diagonal] += 1.0
            inverse = -(U @ np.linalg.solve(A, U.transpose(0, 2, 1)))
            diagonal = np.arange(F.shape[1])
            inverse[:, diagonal, diagonal] += 1.0
            log_determinants = np.linalg.slogdet(A)[1]
        else:
            S = U @ U.transpose(0, 2, 1)
            diagonal = np.arange(S.shape[1])
            S[:, diagonal, diagonal] += 1.0
            log_determinants, inverse = np.linalg.slogdet(S)[1], np.linalg.inv(S)
        SF = inverse @ F
        squares = np.einsum("tr,trs,ts->t", z, inverse, z)
        h = np.einsum("trp,tr->tp", SF, z)
        K = F.transpose(0, 2, 1) @ SF
        return TaskTerms(ids, K, h, log_determinants, np.maximum(squares, 0.0), np.zeros_like(h))
