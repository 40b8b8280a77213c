"""The marginal likelihood of a mixed model, from the sufficient statistics of its tasks.

    y_t = Z_t (b + u_t) + noise,     u_t ~ N(0, s2 C),     b ~ N(0, s2 / precision),

Z_t = [1, X_t] with standardised features, s2 the noise variance, which is profiled out. Each task
is compressed to min(n_t, p) rows (F_t, z_t) with F_t'F_t = Z_t'Z_t and F_t'z_t = Z_t'y_t, and what
these leave of |y_t|^2; nothing else of its rows matters. With S_t = I + F_t C F_t',

    K_t = F_t' S_t^-1 F_t,     g_t = F_t' S_t^-1 z_t,     b = (precision + sum K_t)^-1 sum g_t

and the scores e_t = g_t - K_t b give the posterior means u_t = C e_t.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sharedspan.kernels.dense import factor_grams, solve_factors
from sharedspan.kernels.threads import over_tasks
from sharedspan.statistics.grams import Arrays, GramStatistics
from sharedspan.statistics.rows import RowStatistics, Statistics

FACTOR_TOLERANCE = 1e-11  # of the largest variance of a task: smaller pivots are rounding
SMALLEST_NOISE = 1e-18  # in standard units: what is left of an exact fit is rounding
BUCKET_RATIO = 1.3  # tasks whose compressed rows differ by less than this are padded to one size


@dataclass(frozen=True)
class Scaling:
    """Standard units: z = (x - centre) / scale, response (y - y_centre) / y_scale."""

    centre: np.ndarray  # (d,)
    scale: np.ndarray  # (d,), one where a feature does not vary
    y_centre: float
    y_scale: float
    stored_axes = "centre:p scale:p"

    @classmethod
    def of(cls, statistics: Statistics, intercept: bool) -> Scaling:
        """Means and deviations over all rows, within and between tasks."""
        share = statistics.n / statistics.n.sum()
        centre = share @ statistics.mean
        between = share @ (statistics.mean - centre) ** 2
        scale = np.sqrt(statistics.variances() + between)
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


class TaskTerms(NamedTuple):
    """What each task contributes to the likelihood at a covariance C."""

    n: np.ndarray  # (T,)
    K: np.ndarray  # (T, p, p) F_t' S_t^-1 F_t
    g: np.ndarray  # (T, p) F_t' S_t^-1 z_t
    log_determinants: np.ndarray  # (T,) log |S_t|
    squares: np.ndarray  # (T,) y_t' S_t^-1 y_t

    def scores(self, b: np.ndarray) -> np.ndarray:
        """e_t = g_t - K_t b, (T, p)."""
        return self.g - self.K @ b

    def squares_about(self, b: np.ndarray) -> np.ndarray:
        """Residuals r = y_t - Z_t b as r' S_t^-1 r, (T,)."""
        return np.maximum(self.squares - 2 * self.g @ b + (self.K @ b) @ b, 0.0)

    def log_likelihoods(self, b: np.ndarray, noise: float) -> np.ndarray:
        """Log likelihoods of the tasks at known b and noise variance, (T,)."""
        constant = self.n * math.log(2 * math.pi * noise)
        return -0.5 * (constant + self.log_determinants + self.squares_about(b) / noise)


@dataclass(frozen=True)
class Evidence:
    """The log marginal likelihood at a covariance, with its gradient."""

    value: float
    noise: float  # s2
    mean: np.ndarray  # (p,) b
    mean_covariance: np.ndarray  # (p, p) of b, over s2
    terms: TaskTerms
    gradient: np.ndarray  # (p, p) in C, symmetric
    prior_gradient: float  # in the log of the common prior variance of b
    prior_information: float


class Bucket(NamedTuple):
    """Tasks of similar size, padded with rows of zeros, which change nothing."""

    ids: np.ndarray  # (m,)
    F: np.ndarray  # (m, r, p)
    z: np.ndarray  # (m, r)


class MixedTasks:
    """All tasks, compressed; see the head of this file.

    Parameters
    ----------
    statistics : GramStatistics or RowStatistics
        Of centred rows where tasks have intercepts.
    scaling : Scaling
    """

    def __init__(self, statistics: Statistics, scaling: Scaling) -> None:
        self.scaling = scaling
        self.intercept = statistics.centred
        self.n = statistics.n
        self.p = statistics.n_features + self.intercept
        if isinstance(statistics, GramStatistics):
            F, z, self.residual_squares = _factors(statistics, scaling)
        else:
            F, z, self.residual_squares = _scaled_rows(statistics, scaling)
        self.buckets = self._buckets(statistics, F, z)

    def _buckets(
        self, statistics: Statistics, F: list[np.ndarray], z: list[np.ndarray]
    ) -> list[Bucket]:
        """Tasks by size; where they have intercepts, a row for the task's mean above the others."""
        first, scaling, root = int(self.intercept), self.scaling, np.sqrt(self.n)
        mean = (statistics.mean - scaling.centre) / scaling.scale
        y_mean = root * (statistics.y_mean - scaling.y_centre) / scaling.y_scale
        size = np.array([len(rows) + first for rows in F])
        buckets, order, begin = [], np.argsort(size, kind="stable"), 0
        while begin < len(order):
            limit = max(8, int(BUCKET_RATIO * size[order[begin]]))
            end = int(np.searchsorted(size[order], limit, side="right"))
            ids = order[begin:end]
            shape = len(ids), int(max(size[ids].max(), 1))
            rows, responses = np.zeros((*shape, self.p)), np.zeros(shape)
            for i, t in enumerate(ids):
                rows[i, first : size[t], first:] = F[t]
                responses[i, first : size[t]] = z[t]
            if self.intercept:
                rows[:, 0, 0] = root[ids]
                rows[:, 0, 1:] = root[ids, None] * mean[ids]
                responses[:, 0] = y_mean[ids]
            buckets.append(Bucket(ids, rows, responses))
            begin = end
        return buckets

    @property
    def n_tasks(self) -> int:
        return len(self.n)

    def slope_precision(self, tau: float) -> np.ndarray:
        """Precision (p,) of a prior on b: slopes of variance tau, the intercept flat."""
        precision = np.zeros(self.p)
        if math.isfinite(tau):
            precision[int(self.intercept) :] = 1 / tau
        return precision

    def evaluate(
        self,
        covariance: np.ndarray,
        precision: np.ndarray,
        weight: np.ndarray | None = None,
        integrated: bool = True,
    ) -> Evidence:
        """The log marginal likelihood and its gradient.

        Parameters
        ----------
        covariance : ndarray of shape (p, p)
            C, relative to the noise variance.
        precision : ndarray of shape (p,)
            Of the prior on b, relative; zero is flat.
        weight : ndarray of shape (T,), optional
            Weights of the tasks in the likelihood; by default one each.
        integrated : bool
            Integrate b out; otherwise take its best value (maximum likelihood).
        """
        terms = self.task_terms(covariance)
        K = terms.K
        w = np.ones(self.n_tasks) if weight is None else weight
        total = np.tensordot(w, K, 1)
        P = total + np.diag(precision)
        inverse = inverse_precision(P, integrated)
        b = inverse @ (w @ terms.g)
        scores = terms.scores(b)
        N = float(w @ self.n)
        noise = max((w @ terms.squares_about(b) + b @ (precision * b)) / N, SMALLEST_NOISE)
        value = -0.5 * (N * (math.log(2 * math.pi * noise) + 1) + w @ terms.log_determinants)
        gradient = (scores.T * w) @ scores / noise - total
        proper = precision > 0
        b_squares = b[proper] ** 2 / noise
        if integrated:
            value -= 0.5 * (np.linalg.slogdet(P)[1] - np.log(precision[proper]).sum())
            KP = (w[:, None, None] * K) @ inverse
            gradient += np.tensordot(KP, K, axes=([0, 2], [0, 1]))
            b_squares = b_squares + np.diag(inverse)[proper]
        shrunk = inverse[np.ix_(proper, proper)] * precision[proper]
        return Evidence(
            value=float(value),
            noise=float(noise),
            mean=b,
            mean_covariance=inverse,
            terms=terms,
            gradient=0.5 * gradient,
            prior_gradient=0.5 * float(np.sum(precision[proper] * b_squares - 1.0)),
            prior_information=0.5 * float(np.sum((np.eye(len(shrunk)) - shrunk) ** 2)),
        )

    def task_terms(self, covariance: np.ndarray) -> TaskTerms:
        """Terms of the likelihood at a covariance (p, p), bucket by bucket."""
        T, p = self.n_tasks, self.p
        K, g = np.empty((T, p, p)), np.empty((T, p))
        log_det, squares = np.empty(T), np.empty(T)
        for ids, F, z in self.buckets:
            transposed = F.transpose(0, 2, 1)
            S = (F @ covariance) @ transposed
            r = np.arange(S.shape[1])
            S[:, r, r] += 1.0
            # By LU: a covariance at its bound makes S indefinite by rounding; Cholesky refuses it.
            log_det[ids] = np.linalg.slogdet(S)[1]
            inverse = np.linalg.inv(S)
            SF = inverse @ F
            K[ids] = transposed @ SF
            g[ids] = np.einsum("trp,tr->tp", SF, z)
            squares[ids] = np.einsum("tr,trs,ts->t", z, inverse, z)
        return TaskTerms(self.n, K, g, log_det, self.residual_squares + squares)


def inverse_precision(P: np.ndarray, proper: bool) -> np.ndarray:
    """Inverse of the precision of b, singular for collinear features if the prior is improper."""
    return np.linalg.inv(P) if proper else np.linalg.pinv(P, hermitian=True)


Compressed = tuple[list[np.ndarray], list[np.ndarray], np.ndarray]


def _factors(statistics: GramStatistics, scaling: Scaling) -> Compressed:
    """Factors F_t of the Grams, responses z_t, and the squares that these leave of |y_t|^2."""
    T, d = statistics.mean.shape
    F, order = np.zeros((T, d, d)), np.zeros((T, d), dtype=np.int64)
    rank, z = np.zeros(T, dtype=np.int64), np.zeros((T, d))
    inverse = 1 / scaling.scale
    # The anchor preserves the digits: X'y = G a + g, and only g is divided by the factor.
    g = statistics.g * inverse / scaling.y_scale

    def work(first: int, last: int) -> None:
        factor_grams(statistics.packed, inverse, FACTOR_TOLERANCE, first, last, F, order, rank)
        solve_factors(F, order, rank, g, first, last, z)

    over_tasks(work, T, T * float(d) ** 3 / 3)
    residual = np.maximum(statistics.q / scaling.y_scale**2 - np.sum(z**2, axis=1), 0.0)
    anchor = statistics.anchor * scaling.scale / scaling.y_scale
    z += np.einsum("trd,td->tr", F, anchor)
    return [F[t, : rank[t]] for t in range(T)], [z[t, : rank[t]] for t in range(T)], residual


def _scaled_rows(statistics: RowStatistics, scaling: Scaling) -> Compressed:
    """The rows themselves, where they are fewer than the features."""
    root, cuts = np.sqrt(statistics.weight), statistics.starts[1:-1]
    X = root[:, None] * statistics.X / scaling.scale
    y = root * statistics.y / scaling.y_scale
    return np.split(X, cuts), np.split(y, cuts), np.zeros(statistics.n_tasks)
