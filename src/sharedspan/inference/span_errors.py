"""Standard errors of coefficients in a span that was itself estimated.

To first order the error of the estimate v_t = B w_t is

    P_t D w_t + B M_t^-1 B'X_t'e_t,     M_t = B'G_t B,  P_t = I - B M_t^-1 B'G_t,

with D the error of B and e_t the noise of the task. Only directions D orthogonal to the span
matter (w_t compensates for the others), and with every w_t eliminated the information on D is

    H = sum_t omega_t  w_t w_t' (x) S_t,     S_t = G_t P_t,  omega_t = sigma^2 / sigma_t^2,

so that Cov(D) = sigma^2 H^-1 for many rows. For few rows, two terms of the next order are as large
as the terms that they correct, and both can be computed:

- the fitted w_t carry noise, E[w_t w_t'] = (true) + sigma_t^2 M_t^-1, so H overstates the curvature
  of the loss by N = sum_t omega_t sigma_t^2 M_t^-1 (x) S_t, while the variance of the score, which
  contains the same noise, is H itself (the incidental weights of Neyman and Scott). The sandwich
  (H - N)^-1 H (H - N)^-1 is computed to first order in N, which is always positive:
  Cov(D) = sigma^2 (I + H^-1 N) H^-1 (I + N H^-1);
- an error of the span turns part of the residuals into signal, B M_t^-1 D'X_t'(residuals), with
  variance sigma_t^2 B M_t^-1 E[D'S_t D] M_t^-1 B', with E[D'S_t D] from the trace of S_t and the
  pooled shape of all S_t.

By the same expansion the span uses trace((H - N)^-1 H) degrees of freedom, a little more than its
number of entries, and the noise variance is increased accordingly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sharedspan.inference.noise import common_level
from sharedspan.inference.weight_errors import by_task
from sharedspan.kernels.dense import RANK_TOLERANCE
from sharedspan.kernels.standard_errors import span_row_variances
from sharedspan.kernels.threads import one_blas_thread, over_tasks
from sharedspan.statistics.canonical import Canonical

# Above this many entries of B, its covariance is approximated by a Kronecker product.
LARGEST_EXACT = 2000
SLICE_NUMBERS = 1 << 18  # numbers in the d x d matrices of the tasks handled at a time


@dataclass(frozen=True)
class SpanCovariance:
    """Covariance of D, the error of B: Cov(D w) = sum_r c_r(w) term_r, c(w) = vec(ww') mix."""

    mix: np.ndarray  # (k^2, r)
    terms: np.ndarray  # (r, q, q)

    @cached_property
    def packed(self) -> np.ndarray:
        """Upper triangles of the terms, which are symmetric, (r, q (q + 1) / 2)."""
        i, j = np.triu_indices(self.terms.shape[1])
        return (self.terms[:, i, j] + self.terms[:, j, i]) / 2

    def coefficients(self, W: np.ndarray) -> np.ndarray:
        """c(w) of each row of W (m, k), (m, r)."""
        return (W[:, :, None] * W[:, None, :]).reshape(len(W), -1) @ self.mix

    def times(self, W: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Rows (m, p, q) of each task times Cov(D w) of its weights W (m, k), (m, p, q)."""
        c = self.coefficients(W)
        r, q, _ = self.terms.shape
        if r == 1:
            return c[:, :, None] * (rows @ self.terms[0])
        return rows @ (c @ self.terms.reshape(r, q * q)).reshape(len(c), q, q)

    def diagonals(self, A: np.ndarray) -> np.ndarray:
        """Diagonals of A term_r A' for A (d, q), (r, d)."""
        return np.stack([np.einsum("dq,dq->d", A @ term, A) for term in self.terms])

    def diagonal(self, W: np.ndarray, A: np.ndarray) -> np.ndarray:
        """Diagonals of A Cov(D w) A' for A (d, q) and each row of W (m, k), (m, d)."""
        return self.coefficients(W) @ self.diagonals(A)

    def trace_with(self, S: np.ndarray) -> np.ndarray:
        """E[D'S D] for a symmetric S (q, q), (k, k)."""
        k = round(len(self.mix) ** 0.5)
        E = (self.mix @ np.einsum("rij,ij->r", self.terms, S)).reshape(k, k)
        return (E + E.T) / 2


class Sandwich(NamedTuple):
    """(I + H^-1 N) H^-1 (I + N H^-1) and trace(H^-1 N); see the module docstring."""

    covariance: np.ndarray
    trace: float


@dataclass(frozen=True)
class SpanUncertainty:
    """Standard errors in an estimated span, stored as about k numbers per coefficient.

    All arrays are in canonical features and in the response units of the statistics, with B
    orthonormal and Q the complement of its span. The Gram matrices, d / 2k times larger, are not
    stored.
    """

    canonical: Canonical
    B: np.ndarray  # (d', k)
    Q: np.ndarray  # (d', q)
    W: np.ndarray  # (T, k)
    variance: np.ndarray  # (T,) noise variances, as the fit estimated them
    degrees: np.ndarray  # (T,) degrees of freedom of ``variance``
    n: np.ndarray  # (T,)
    mean: np.ndarray | None  # (T, d') means of the features; None without intercepts
    inverse: np.ndarray  # (T, k, k) pseudo-inverse of M_t
    singular: np.ndarray  # (T, k, k) very large variance of w_t along weights without rows
    cross: np.ndarray  # (T, k, q) B'G_t Q
    spare: np.ndarray  # (T,) traces of S_t
    shape: np.ndarray  # (q, q) pooled S_t of trace one
    information: np.ndarray  # (k (k + 1) / 2, q, q) blocks of H; (1, k, k) if not exact
    excess: np.ndarray  # blocks of N, in the same shape
    reference: float  # approximate size of H for known weights
    stored_axes = (
        "B:pa Q:pq W:Ta variance:T degrees:T n:T mean:Tp inverse:Taa singular:Taa cross:Taq "
        "spare:T shape:qq information:bcc excess:bcc"
    )

    @property
    def exact(self) -> bool:
        """Whether the covariance of all entries of B is computed without approximation."""
        return has_exact_covariance(*self.B.shape)

    @cached_property
    def sandwich(self) -> Sandwich:
        """Cov(D) / sigma^2, (k q, k q), columns of D one after the other; (k, k) if not exact."""
        H, N = self.information[0], self.excess[0]
        if self.exact:
            k = self.B.shape[1]
            H, N = (_assemble(blocks, k) for blocks in (self.information, self.excess))
        inverse = _inverse(H, RANK_TOLERANCE * self.reference)
        product = inverse @ N
        left = np.eye(len(H)) + product
        return Sandwich(left @ inverse @ left.T, float(np.trace(product)))

    @property
    def spare_rows(self) -> float:
        """Rows minus the intercepts and weights of their tasks."""
        used = self.B.shape[1] + (self.mean is not None)
        return float(np.maximum(self.n - used, 0.0).sum())

    @cached_property
    def noise(self) -> np.ndarray:
        """Noise variances, corrected for the degrees of freedom of the span, (T,)."""
        k, q = self.B.shape[1], self.Q.shape[1]
        left = max(self.spare_rows - k * q, 1.0)
        extra = self.sandwich.trace * (1 if self.exact else q)
        return self.variance * (left / max(left - extra, 1.0))

    @cached_property
    def span_covariance(self) -> SpanCovariance:
        """Cov(D) by blocks, or K (x) shape^-1 if B has too many entries.

        The approximation assumes S_t = trace_t * shape for every task, which holds if the features
        of all tasks have one covariance and there are many rows; in whitened features shape is near
        the identity. The inverse of H, which varies around that mean, is larger by the factor of a
        Wishart matrix of k q dimensions, rows / (rows - k q - 1).
        """
        k, q = self.B.shape[1], self.Q.shape[1]
        if not self.exact:
            gain = self.spare_rows / max(self.spare_rows - k * q - 1, 1.0)
            K = gain * common_level(self.noise) * self.sandwich.covariance
            floor = RANK_TOLERANCE / max(q, 1)
            return SpanCovariance(K.reshape(-1, 1), _inverse(self.shape, floor)[None])
        C = common_level(self.noise) * self.sandwich.covariance.reshape(k, q, k, q)
        first, second = np.triu_indices(k)
        mix = np.zeros((k, k, len(first)))
        mix[first, second, np.arange(len(first))] = 1.0
        terms = np.stack([C[a, :, b, :] for a, b in zip(first, second, strict=True)])
        terms[first != second] += terms[first != second].transpose(0, 2, 1)
        return SpanCovariance(mix.reshape(k * k, -1), terms)

    @cached_property
    def weights_covariance(self) -> np.ndarray:
        """Covariance of w_t in the given span, with its second-order term, (T, k, k)."""
        E = self.span_covariance.trace_with(self.shape)
        out = np.empty_like(self.inverse)
        for part in task_slices(len(out), E.size):
            inverse = self.inverse[part]
            taken = self.spare[part, None, None] * (inverse @ E @ inverse)
            out[part] = self.noise[part, None, None] * (inverse + taken + self.singular[part])
        return out

    @cached_property
    def coef_std(self) -> np.ndarray:
        """Standard errors of the coefficients in the user's units, (T, d)."""
        B, A = self.canonical.to_user(self.B), self.canonical.to_user(self.Q)
        # Rows are scaled to one, because squares of extreme units overflow or underflow.
        unit = np.abs(np.column_stack([B, A])).max(axis=1)
        inverse_unit = np.divide(1.0, unit, out=np.zeros_like(unit), where=unit > 0)[:, None]
        B, A = B * inverse_unit, A * inverse_unit
        covariance, within = self.span_covariance, self.weights_covariance
        diagonals, (d, k) = covariance.diagonals(A), B.shape
        pairs = (B[:, :, None] * B[:, None, :]).reshape(d, k * k)
        slices, std = (
            list(task_slices(len(self.W), A.shape[1] ** 2 + d)),
            np.empty((len(self.W), d)),
        )

        def work(first: int, last: int) -> None:
            for part in slices[first:last]:
                W, taken = self.W[part], self.inverse[part] @ self.cross[part]  # (m, k, q)
                product = covariance.times(W, taken)
                inner = within[part] + product @ taken.transpose(0, 2, 1)
                variance = covariance.coefficients(W) @ diagonals
                variance += inner.reshape(len(W), -1) @ pairs.T
                variance -= 2 * np.einsum("da,tad->td", B, product @ A.T)
                std[part] = np.sqrt(np.maximum(variance, 0.0)) * unit

        with one_blas_thread():
            over_tasks(work, len(slices), float(covariance.terms.size) * len(std))
        return std

    def response_std(self, X: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Standard deviations of new responses at rows X (m, d) of tasks ``codes`` (m,), (m,)."""
        units, P = self.canonical.units, self.canonical.P
        basis, D = np.hstack([self.B, self.Q]), self.span_covariance
        of_tasks = self.W, self.inverse, self.cross, self.weights_covariance
        arrays = [np.ascontiguousarray(a) for a in (*of_tasks, D.mix, D.packed)]
        noise = self.noise if self.mean is None else self.noise * (1 + 1 / self.n)
        out = np.empty(len(X))

        def variances(rows: np.ndarray) -> None:
            z = X[rows] * units.scale - units.origin * units.scale
            z = z if P is None else z @ P
            if self.mean is not None:
                z -= self.mean[codes[rows]]
            slopes = np.empty(len(z))
            span_row_variances(z @ basis, codes[rows], slopes, *arrays)
            out[rows] = np.sqrt(np.maximum(slopes, 0.0) + noise[codes[rows]]) / units.y_scale

        by_task(variances, codes, basis.size + arrays[-1].size)
        return out

    def representation_covariance(self, representation: np.ndarray) -> np.ndarray | None:
        """Cov(vec B) (k d, k d) for a basis (d, k) of this span in the user's units.

        Columns of B are stacked. None if B has too many entries.
        """
        if not self.exact:
            return None
        span, A = self.canonical.to_user(self.B), self.canonical.to_user(self.Q)
        change = np.linalg.lstsq(span, representation, rcond=None)[0]
        jacobian = np.kron(change.T, A)  # derivative of vec(A D change)
        covariance = jacobian @ self.sandwich.covariance @ jacobian.T
        return common_level(self.noise) * (covariance + covariance.T) / 2


def has_exact_covariance(d: int, k: int) -> bool:
    """Whether the entries of B (d, k) are few enough for an exact covariance."""
    return k * d <= LARGEST_EXACT


def task_slices(n_tasks: int, size: int) -> Iterator[slice]:
    """Slices of tasks with ``size`` numbers each, about ``SLICE_NUMBERS`` per slice."""
    step = max(SLICE_NUMBERS // max(size, 1), 1)
    return (slice(lo, min(lo + step, n_tasks)) for lo in range(0, n_tasks, step))


def _assemble(blocks: np.ndarray, k: int) -> np.ndarray:
    """The symmetric (k q, k q) matrix with these upper blocks (k (k + 1) / 2, q, q)."""
    q = blocks.shape[1]
    out = np.empty((k, q, k, q))
    for block, a, b in zip(blocks, *np.triu_indices(k), strict=True):
        out[a, :, b, :] = out[b, :, a, :] = (block + block.T) / 2
    return out.reshape(k * q, k * q)


def _inverse(H: np.ndarray, floor: float) -> np.ndarray:
    """Inverse of a positive semidefinite H; directions without information get 1 / floor."""
    from scipy.linalg import cho_solve, cholesky

    if floor <= 0 or H.size == 0:
        return np.zeros_like(H)
    try:
        root = cholesky(H, lower=True)
        if np.diag(root).min() ** 2 > floor:
            return cho_solve((root, True), np.eye(len(H)))
    except np.linalg.LinAlgError:
        pass
    values, vectors = np.linalg.eigh(H)
    return (vectors / np.maximum(values, floor)) @ vectors.T
