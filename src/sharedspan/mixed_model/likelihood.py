"""The marginal likelihood of a mixed model, from sums per task.

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

import numpy as np

from sharedspan.kernels.factor import factor_grams, solve_factors
from sharedspan.kernels.threads import over_tasks
from sharedspan.statistics.sums import Arrays, GramStatistics, RowStatistics, Statistics

PIVOT_TOLERANCE = 1e-11  # of the largest variance of a task: smaller pivots are rounding
LEAST_NOISE = 1e-18  # in standard units: what is left of an exact fit is rounding
BUCKET = 1.3  # tasks whose compressed rows differ by less than this factor are padded to one size


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
        within = statistics.variances()
        centre = share @ statistics.mean
        between = share @ (statistics.mean - centre) ** 2
        scale = np.sqrt(within + between)
        scale[~(scale > 0)] = 1.0
        _, q = response_sums(statistics)
        y_centre = float(share @ statistics.y_mean)
        spread = q.sum() / statistics.n.sum() + share @ (statistics.y_mean - y_centre) ** 2
        level = float(np.abs(statistics.y_mean).max())
        y_scale = math.sqrt(spread) if spread > (1e-13 * level) ** 2 else 1.0
        if not intercept:
            return cls(np.zeros_like(centre), scale, 0.0, y_scale)
        return cls(centre, scale, y_centre, y_scale)

    def from_standard(self, V: np.ndarray, intercept: bool) -> tuple[np.ndarray, np.ndarray]:
        """Slopes (T, d) and intercepts (T,) of coefficients V (T, p) in standard units."""
        slopes = V[:, int(intercept) :] / self.scale * self.y_scale
        if not intercept:
            return slopes, np.zeros(len(V))
        return slopes, self.y_centre + self.y_scale * V[:, 0] - slopes @ self.centre


def response_sums(statistics: Statistics) -> tuple[np.ndarray, np.ndarray]:
    """X'y (T, d) and |y|^2 (T,) of the rows as the statistics hold them."""
    _, (sums, squares) = statistics.map_shards(_response_sums)
    return sums, squares


def _response_sums(statistics: Statistics) -> tuple[Arrays, Arrays]:
    if isinstance(statistics, GramStatistics):
        return (), statistics.at_anchor(np.zeros_like(statistics.mean))
    w = statistics.weight
    starts = statistics.starts[:-1]
    sums = np.add.reduceat((w * statistics.y)[:, None] * statistics.X, starts, axis=0)
    return (), (sums, np.add.reduceat(w * statistics.y**2, starts))


@dataclass(frozen=True)
class Bucket:
    """Tasks of about one size, padded with rows of zeros, which change nothing."""

    ids: np.ndarray  # (m,)
    F: np.ndarray  # (m, r, p)
    z: np.ndarray  # (m, r)


@dataclass(frozen=True)
class Evidence:
    """The log marginal likelihood at a covariance, and what its gradient needs."""

    value: float
    noise: float  # s2
    mean: np.ndarray  # (p,) b
    mean_covariance: np.ndarray  # (p, p) of b, over s2
    scores: np.ndarray  # (T, p) e_t
    information: np.ndarray  # (T, p, p) K_t
    log_determinants: np.ndarray  # (T,)
    squares: np.ndarray  # (T,) y' S_t^-1 y about b
    gradient: np.ndarray  # (p, p) in C, symmetric
    prior_gradient: float  # in the log of the common prior variance of b
    prior_information: float

    def task_values(self, n: np.ndarray) -> np.ndarray:
        """The log likelihood of each task at b, (T,)."""
        return -0.5 * (
            n * math.log(2 * math.pi * self.noise)
            + self.log_determinants
            + self.squares / self.noise
        )


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
            F, z, rank, self.left = _compressed(statistics, scaling)
        else:
            F, z, rank, self.left = _scaled_rows(statistics, scaling)
        if self.intercept:
            F, z, rank = self._with_means(statistics, F, z, rank)
        self.buckets = _buckets(F, z, rank)

    def _with_means(
        self, statistics: Statistics, F: list[np.ndarray], z: list[np.ndarray], rank: np.ndarray
    ) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
        """The row of each task's mean above the others, and the column of ones."""
        scaling, root = self.scaling, np.sqrt(statistics.n)
        mean = (statistics.mean - scaling.centre) / scaling.scale
        level = root * (statistics.y_mean - scaling.y_centre) / scaling.y_scale
        stacked, responses = [], []
        for t, (rows, values) in enumerate(zip(F, z, strict=True)):
            top = root[t] * np.concatenate([[1.0], mean[t]])
            below = np.column_stack([np.zeros(len(rows)), rows])
            stacked.append(np.vstack([top, below]))
            responses.append(np.concatenate([[level[t]], values]))
        return stacked, responses, rank + 1

    @property
    def n_tasks(self) -> int:
        return len(self.n)

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
            Tasks count by so much.
        integrated : bool
            Integrate b out; otherwise take its best value (maximum likelihood).
        """
        K, g, log_det, squares = self.pieces(covariance)
        w = np.ones(self.n_tasks) if weight is None else weight
        total = np.tensordot(w, K, 1)
        P = total + np.diag(precision)
        # Features that say the same twice have no inverse without a prior.
        inverse = np.linalg.inv(P) if integrated else np.linalg.pinv(P, hermitian=True)
        b = inverse @ (w @ g)
        scores = g - K @ b
        squares = self.squares_about(b, K, g, squares)
        N = float(w @ self.n)
        noise = max((w @ squares + b @ (precision * b)) / N, LEAST_NOISE)
        value = -0.5 * (N * (math.log(2 * math.pi * noise) + 1) + w @ log_det)
        gradient = (scores.T * w) @ scores / noise - total
        proper = precision > 0
        spread = b[proper] ** 2 / noise
        if integrated:
            value -= 0.5 * (np.linalg.slogdet(P)[1] - np.log(precision[proper]).sum())
            KP = (w[:, None, None] * K) @ inverse
            gradient += np.tensordot(KP, K, axes=([0, 2], [0, 1]))
            spread = spread + np.diag(inverse)[proper]
        shrunk = inverse[np.ix_(proper, proper)] * precision[proper]
        return Evidence(
            value=float(value),
            noise=float(noise),
            mean=b,
            mean_covariance=inverse,
            scores=scores,
            information=K,
            log_determinants=log_det,
            squares=squares,
            gradient=0.5 * gradient,
            prior_gradient=0.5 * float(np.sum(precision[proper] * spread - 1.0)),
            prior_information=0.5 * float(np.sum((np.eye(len(shrunk)) - shrunk) ** 2)),
        )

    def at_mean(
        self, covariance: np.ndarray, b: np.ndarray, noise: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Log likelihoods (T,), scores (T, p) and information (T, p, p) at known b and noise."""
        K, g, log_det, squares = self.pieces(covariance)
        squares = self.squares_about(b, K, g, squares)
        values = self.n * math.log(2 * math.pi * noise) + log_det + squares / noise
        return -0.5 * values, g - K @ b, K

    def squares_about(
        self, b: np.ndarray, K: np.ndarray, g: np.ndarray, squares: np.ndarray
    ) -> np.ndarray:
        """Y' S_t^-1 y about b, (T,), from the same about zero."""
        return np.maximum(self.left + squares - 2 * g @ b + (K @ b) @ b, 0.0)

    def pieces(
        self, covariance: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """K (T, p, p), g (T, p), log |S_t| (T,) and z' S_t^-1 z (T,)."""
        T, p = self.n_tasks, self.p
        K, g = np.empty((T, p, p)), np.empty((T, p))
        log_det, squares = np.empty(T), np.empty(T)
        for bucket in self.buckets:
            self._evaluate(bucket, covariance, K, g, log_det, squares)
        return K, g, log_det, squares

    @staticmethod
    def _evaluate(
        bucket: Bucket, C: np.ndarray, K: np.ndarray, g: np.ndarray, log_det: np.ndarray,
        squares: np.ndarray,
    ) -> None:  # fmt: skip
        F, z, ids = bucket.F, bucket.z, bucket.ids
        across = F.transpose(0, 2, 1)
        S = (F @ C) @ across
        r = np.arange(S.shape[1])
        S[:, r, r] += 1.0
        # By LU: a covariance at its bound makes S indefinite by rounding, which Cholesky refuses.
        log_det[ids] = np.linalg.slogdet(S)[1]
        inverse = np.linalg.inv(S)
        SF = inverse @ F
        K[ids] = across @ SF
        g[ids] = np.einsum("trp,tr->tp", SF, z)
        squares[ids] = np.einsum("tr,trs,ts->t", z, inverse, z)


def _compressed(
    statistics: GramStatistics, scaling: Scaling
) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray, np.ndarray]:
    """Factors of the Grams, responses in them, ranks, and the squares that are left."""
    T, d = statistics.mean.shape
    F, order = np.zeros((T, d, d)), np.zeros((T, d), dtype=np.int64)
    rank, z = np.zeros(T, dtype=np.int64), np.zeros((T, d))
    inverse = 1 / scaling.scale
    # The anchor keeps the digits: X'y = G a + g, and only g is divided by the factor.
    g = statistics.g * inverse / scaling.y_scale

    def work(first: int, last: int) -> None:
        factor_grams(statistics.packed, inverse, PIVOT_TOLERANCE, first, last, F, order, rank)
        solve_factors(F, order, rank, g, first, last, z)

    over_tasks(work, T, T * float(d) ** 3 / 3)
    left = np.maximum(statistics.q / scaling.y_scale**2 - np.sum(z**2, axis=1), 0.0)
    anchor = statistics.anchor * scaling.scale / scaling.y_scale
    z += np.einsum("trd,td->tr", F, anchor)
    rows = [F[t, : rank[t]] for t in range(T)]
    return rows, [z[t, : rank[t]] for t in range(T)], rank, left


def _scaled_rows(
    statistics: RowStatistics, scaling: Scaling
) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray, np.ndarray]:
    """The rows themselves, where they are fewer than the features."""
    root = np.sqrt(statistics.weight)
    X = root[:, None] * statistics.X / scaling.scale
    y = root * statistics.y / scaling.y_scale
    cuts = statistics.starts[1:-1]
    rank = np.diff(statistics.starts)
    return np.split(X, cuts), np.split(y, cuts), rank, np.zeros(len(rank))


def _buckets(F: list[np.ndarray], z: list[np.ndarray], rank: np.ndarray) -> list[Bucket]:
    buckets, order, begin = [], np.argsort(rank, kind="stable"), 0
    while begin < len(order):
        limit = max(8, int(BUCKET * rank[order[begin]]))
        end = int(np.searchsorted(rank[order], limit, side="right"))
        ids = order[begin:end]
        r, p = int(max(rank[ids].max(), 1)), F[0].shape[1]
        rows, responses = np.zeros((len(ids), r, p)), np.zeros((len(ids), r))
        for i, t in enumerate(ids):
            rows[i, : rank[t]], responses[i, : rank[t]] = F[t], z[t]
        buckets.append(Bucket(ids, rows, responses))
        begin = end
    return buckets
