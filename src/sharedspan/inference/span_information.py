"""The information on an estimated span, from one pass over the task statistics.

With B orthonormal, M_t = B'G_t B and S_t = G_t - G_t B M_t^-1 B'G_t, tasks add up to

    H = sum_t omega_t  w_t w_t' (x) S_t,     N = sum_t omega_t sigma_t^2 M_t^-1 (x) S_t;

the module docstring of ``span_errors`` derives both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sharedspan.inference.noise import relative_precision
from sharedspan.inference.span_errors import SpanUncertainty, has_exact_covariance, task_slices
from sharedspan.inference.weight_errors import pseudo_inverses, undetermined_variances
from sharedspan.kernels.dense import RANK_TOLERANCE
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.grams import Arrays
from sharedspan.statistics.rows import Statistics
from sharedspan.statistics.task_statistics import TaskStatistics


@dataclass(frozen=True)
class DeferredUncertainty:
    """The uncertainty of a span before its first use, which takes a pass over the statistics."""

    statistics: Statistics | None  # of the canonical features; None if the model retains them
    canonical: Canonical
    B: np.ndarray  # (d', k)
    W: np.ndarray  # (k, T)
    noise: np.ndarray  # (T,)
    degrees: np.ndarray  # (T,)

    def compute(self, retained: TaskStatistics | None = None) -> SpanUncertainty:
        """Compute the uncertainty, if need be from the statistics that a model has retained."""
        statistics = self.statistics
        if statistics is None:
            assert retained is not None
            statistics, P = retained.statistics, self.canonical.P
            statistics = statistics if P is None else statistics.transformed(P)
        return span_uncertainty(
            statistics, self.canonical, self.B, self.W, self.noise, self.degrees
        )

    def __reduce__(self) -> Any:
        """Statistics of their own are not pickled, but the uncertainty that they give."""
        if self.statistics is None:
            return super().__reduce__()
        return _identity, (self.compute(),)


def _identity(uncertainty: SpanUncertainty) -> SpanUncertainty:
    return uncertainty


def span_uncertainty(
    statistics: Statistics,
    canonical: Canonical,
    B: np.ndarray,
    W: np.ndarray,
    noise: np.ndarray,
    degrees: np.ndarray,
) -> SpanUncertainty:
    """Standard errors of a span, from one pass over the statistics.

    Parameters
    ----------
    statistics : Statistics
        Statistics of the canonical features.
    canonical : Canonical
    B : ndarray of shape (d', k)
    W : ndarray of shape (k, T)
        Weights for the responses of the statistics, without the task scale of the objective.
    noise, degrees : ndarray of shape (T,)
        Noise variances in the units of the statistics, and their degrees of freedom.
    """
    d, k = B.shape
    basis, upper = np.linalg.qr(B, mode="complete")
    # Contiguous copies, so that a model loaded from a file computes the same last bits.
    B, Q, W = basis[:, :k].copy(), basis[:, k:].copy(), (upper[:k] @ W).T
    omega = relative_precision(noise, statistics.n_tasks)
    (pooled, blocks, reference), (inverse, singular, cross, spare) = statistics.map_shards(
        partial(_span_sums, B=B, Q=Q), W, noise, omega
    )
    shape = Q.T @ pooled.reshape(d, d) @ Q
    shape /= max(float(np.trace(shape)), np.finfo(float).tiny)
    if has_exact_covariance(d, k):
        information, excess = Q.T @ blocks.reshape(2, -1, d, d) @ Q
    else:
        scale = omega * spare
        information = np.einsum("t,ta,tb->ab", scale, W, W, optimize=True)[None]
        excess = np.einsum("t,tab->ab", scale * noise, inverse)[None]
    return SpanUncertainty(
        canonical, B, Q, W, noise, degrees, statistics.n,
        statistics.mean if statistics.centred else None,
        inverse, singular, cross, spare, shape, information, excess, float(reference),
    )  # fmt: skip


def _span_sums(
    statistics: Statistics,
    W: np.ndarray,
    noise: np.ndarray,
    omega: np.ndarray,
    *,
    B: np.ndarray,
    Q: np.ndarray,
) -> tuple[Arrays, Arrays]:
    """Sums of S_t, of blocks of H and N, and of ``reference``; and arrays with a row per task."""
    (d, k), T = B.shape, len(W)
    first, second = np.triu_indices(k)
    inverse, values, vectors = np.empty((T, k, k)), np.empty((T, k)), np.empty((T, k, k))
    cross, spare, pooled = np.empty((T, k, d - k)), np.empty(T), np.zeros(d * d)
    exact, reference = has_exact_covariance(d, k), 0.0
    blocks = np.zeros((2, len(first), d * d if exact else 0))
    with one_blas_thread():
        for part in task_slices(T, d * d):
            S = np.stack([statistics.gram(t) for t in range(part.start, part.stop)])
            BG = B.T @ S
            values[part], vectors[part] = np.linalg.eigh(BG @ B)
            inverse[part] = pseudo_inverses(values[part], vectors[part])
            total = np.einsum("tii->t", S)
            S -= BG.transpose(0, 2, 1) @ (inverse[part] @ BG)
            cross[part] = BG @ Q
            spare[part] = np.einsum("tii->t", S)
            rounding = spare[part] <= RANK_TOLERANCE * total
            S[rounding], spare[part][rounding] = 0.0, 0.0
            reference += omega[part] @ (total * np.sum(W[part] ** 2, axis=1)) / d
            S = S.reshape(len(S), d * d)
            pooled += omega[part] @ S
            if exact:
                weights = W[part][:, first] * W[part][:, second]
                blocks[0] += (omega[part, None] * weights).T @ S
                noisy = noise[part, None] * inverse[part][:, first, second]
                blocks[1] += (omega[part, None] * noisy).T @ S
    sums = pooled, blocks, np.array(reference)
    return sums, (inverse, undetermined_variances(values, vectors), cross, spare)
