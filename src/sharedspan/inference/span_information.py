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
from sharedspan.inference.span_errors import SpanUncertainty, has_exact_covariance
from sharedspan.inference.weight_errors import pseudo_inverses, undetermined_variances
from sharedspan.kernels.cpu import packed_size
from sharedspan.kernels.dense import RANK_TOLERANCE
from sharedspan.kernels.standard_errors import invert, row_grams, span_products, spare_grams
from sharedspan.kernels.threads import one_blas_thread, over_tasks
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.grams import Arrays
from sharedspan.statistics.rows import RowStatistics, Statistics
from sharedspan.statistics.task_statistics import TaskStatistics

SLICE_NUMBERS = 1 << 16  # numbers in the Grams of the tasks handled at a time
FEWEST_TASKS = 8  # handled at a time, however large their Grams are
MOST_BLOCKS = 64  # of tasks, whose sums are added up at the end
SUM_NUMBERS = 1 << 23  # numbers in the sums of all blocks
# Normal matrices up to this condition number are inverted by Cholesky, others by eigenvalues.
LARGEST_CONDITION = 1e6


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
        if self.statistics is None:
            assert retained is not None
            statistics, P = retained.statistics, self.canonical.P
            statistics = statistics if P is None else statistics.transformed(P)
        else:
            statistics = self.statistics.gather_local()
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
    """Sums of S_t, of blocks of H and N, and of ``reference``; and arrays with a row per task.

    Sums over tasks are sums over fixed blocks of tasks, so they do not depend on the threads.
    """
    (d, k), T = B.shape, len(W)
    exact, (first, second) = has_exact_covariance(d, k), np.triu_indices(k)
    normal, inverse = np.empty((T, k, k)), np.empty((T, k, k))
    cross, spare, regular = np.empty((T, k, d - k)), np.empty(T), np.empty(T, dtype=bool)
    basis, transposed = np.hstack([B, Q]), np.ascontiguousarray(B.T)
    n_sums, size = 1 + 2 * len(first) * exact, packed_size(d)
    diagonal = np.cumsum(np.append(0, np.arange(d, 1, -1)))
    step = max(SLICE_NUMBERS // size, FEWEST_TASKS)
    slices = [slice(lo, min(lo + step, T)) for lo in range(0, T, step)]
    n_blocks = max(min(len(slices), MOST_BLOCKS, SUM_NUMBERS // (n_sums * size)), 1)
    sums, references = np.zeros((n_blocks, size, n_sums)), np.zeros(n_blocks)

    def add(block: int, part: slice) -> None:
        G = np.ascontiguousarray(_packed_grams(statistics, part).T)
        total, m = G[diagonal].sum(axis=0), G.shape[1]
        BG = np.empty((k, d, m))
        span_products(G, transposed, BG)
        projected = (basis.T @ BG).transpose(2, 0, 1)  # (m, k, d)
        normal[part], cross[part] = projected[:, :, :k], projected[:, :, k:]
        invert(normal[part], LARGEST_CONDITION, inverse[part], regular[part])
        rest = part.start + np.flatnonzero(~regular[part])
        if len(rest):
            inverse[rest] = pseudo_inverses(*np.linalg.eigh(normal[rest]))
        spare_grams(G, BG, np.ascontiguousarray(inverse[part].transpose(1, 2, 0)))
        trace = G[diagonal].sum(axis=0)
        rounding = trace <= RANK_TOLERANCE * total
        spare[part] = np.where(rounding, 0.0, trace)
        weights = np.ones((m, n_sums))
        if exact:
            weights[:, 1 : 1 + len(first)] = W[part][:, first] * W[part][:, second]
            weights[:, 1 + len(first) :] = noise[part, None] * inverse[part][:, first, second]
        weights *= np.where(rounding, 0.0, omega[part])[:, None]
        sums[block] += G @ weights
        references[block] += omega[part] @ (total * np.sum(W[part] ** 2, axis=1)) / d

    def work(begin: int, end: int) -> None:
        for block in range(begin, end):
            bounds = [len(slices) * b // n_blocks for b in (block, block + 1)]
            for part in slices[slice(*bounds)]:
                add(block, part)

    with one_blas_thread():
        over_tasks(work, n_blocks, T * float(size) * (4 * k + 2 * n_sums))
    i, j = np.triu_indices(d)
    full = np.empty((n_sums, d, d))
    full[:, i, j] = full[:, j, i] = sums.sum(axis=0).T
    blocks = full[1:].reshape(2, -1, d * d) if exact else np.zeros((2, len(first), 0))
    singular = np.zeros((T, k, k))
    rest = np.flatnonzero(~regular)
    if len(rest):
        values, vectors = np.linalg.eigh(normal[rest])
        trace = np.einsum("tii->t", normal)
        largest = np.linalg.eigvalsh(normal[trace >= trace.max() / k]).max(initial=0.0)
        singular[rest] = undetermined_variances(values, vectors, float(largest))
    totals = full[0].reshape(d * d), blocks, np.array(references.sum())
    return totals, (inverse, singular, cross, spare)


def _packed_grams(statistics: Statistics, part: slice) -> np.ndarray:
    """Upper triangles of the Grams of some tasks, (m, d (d + 1) / 2)."""
    if not isinstance(statistics, RowStatistics):
        return statistics.packed[part]
    packed = np.empty((part.stop - part.start, packed_size(statistics.n_features)))
    row_grams(statistics.X, statistics.weight, statistics.starts, part.start, packed)
    return packed
