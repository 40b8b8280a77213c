"""Standard errors of coefficients in a span that was itself estimated.

To first order the estimate v_t = B w_t errs by

    P_t D w_t + B M_t^-1 B'X_t'e_t,     M_t = B'G_t B,  P_t = I - B M_t^-1 B'G_t,

with D the error of B and e_t the noise of the task. Only directions D orthogonal to the span
count (the others are undone by w_t), and with every w_t eliminated the information on D is

    H = sum_t omega_t  w_t w_t' (x) S_t,     S_t = G_t P_t,  omega_t = sigma^2 / sigma_t^2,

so that Cov(D) = sigma^2 H^-1 where rows are many. Where they are few, two terms of the next order
are as large as what they correct, and both are known:

- the fitted w_t carry noise, E[w_t w_t'] = (true) + sigma_t^2 M_t^-1, so H overstates the curvature
  of the loss by N = sum_t omega_t sigma_t^2 M_t^-1 (x) S_t, while the variance of the score, which
  contains the same noise, is H itself (the incidental weights of Neyman and Scott). The sandwich
  (H - N)^-1 H (H - N)^-1 is taken to first order in N, which keeps it positive:
  Cov(D) = sigma^2 (I + H^-1 N) H^-1 (I + N H^-1);
- a wrong span takes part of the residuals for signal, B M_t^-1 D'X_t'(residuals), of variance
  sigma_t^2 B M_t^-1 E[D'S_t D] M_t^-1 B', with E[D'S_t D] from the trace of S_t and the pooled
  shape of all of them.

By the same expansion the span costs trace((H - N)^-1 H) degrees of freedom, a little more than its
number of entries, and the noise variance is raised accordingly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from sharedspan.kernels import cpu
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.objective.base import RANK_TOLERANCE
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.sums import Arrays, GramStatistics, Statistics

# Above this many entries of B its covariance is taken as a Kronecker product.
LARGEST_EXACT = 2000
BLOCK = 1 << 18  # numbers in the d x d matrices of the tasks handled at a time


@dataclass(frozen=True)
class SpanCovariance:
    """Covariance of D, the error of B: Cov(D w) = sum_r c_r(w) term_r, c(w) = vec(ww') mix."""

    mix: np.ndarray  # (k^2, r)
    terms: np.ndarray  # (r, q, q)

    def coefficients(self, W: np.ndarray) -> np.ndarray:
        """c(w) of each row of W (m, k), (m, r)."""
        return (W[:, :, None] * W[:, None, :]).reshape(len(W), -1) @ self.mix

    def times(self, W: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Rows (m, p, q) of each task times Cov(D w) of its weights W (m, k), (m, p, q)."""
        c = self.coefficients(W)
        r, q, _ = self.terms.shape
        if r == 1:
            return c[:, :, None] * (rows @ self.terms[0])
        out, flat = np.empty_like(rows), self.terms.reshape(r, q * q)
        for part in _parts(len(W), q * q):
            out[part] = rows[part] @ (c[part] @ flat).reshape(len(c[part]), q, q)
        return out

    def diagonal(self, W: np.ndarray, A: np.ndarray) -> np.ndarray:
        """Diagonals of A Cov(D w) A' for A (d, q) and each row of W (m, k), (m, d)."""
        diagonals = [np.einsum("dq,dq->d", A @ term, A) for term in self.terms]
        return self.coefficients(W) @ np.stack(diagonals)

    def trace_with(self, S: np.ndarray) -> np.ndarray:
        """E[D'S D] for a symmetric S (q, q), (k, k)."""
        k = round(len(self.mix) ** 0.5)
        E = (self.mix @ np.einsum("rij,ij->r", self.terms, S)).reshape(k, k)
        return (E + E.T) / 2


class Sandwich(NamedTuple):
    """(I + H^-1 N) H^-1 (I + N H^-1) and trace(H^-1 N); see the head of this file."""

    covariance: np.ndarray
    trace: float


@dataclass(frozen=True)
class SpanUncertainty:
    """What a fit keeps of the rows for standard errors: k numbers per coefficient.

    All in canonical features and the responses' units of the statistics, with B orthonormal and
    Q the complement of its span. The Grams themselves, d / 2k times larger, are let go.
    """

    canonical: Canonical
    B: np.ndarray  # (d', k)
    Q: np.ndarray  # (d', q)
    W: np.ndarray  # (T, k)
    variance: np.ndarray  # (T,) of the noise, as the fit estimated it
    degrees: np.ndarray  # (T,) degrees of freedom of these variances
    n: np.ndarray  # (T,)
    mean: np.ndarray | None  # (T, d') of the features; None without intercepts
    inverse: np.ndarray  # (T, k, k) pseudo-inverse of M_t
    singular: np.ndarray  # (T, k, k) what is unknown of w_t for want of rows, as a variance
    cross: np.ndarray  # (T, k, q) B'G_t Q
    spare: np.ndarray  # (T,) traces of S_t
    shape: np.ndarray  # (q, q) pooled S_t of trace one
    information: np.ndarray  # (k (k + 1) / 2, q, q) blocks of H; (1, k, k) where too large
    excess: np.ndarray  # blocks of N, alike
    reference: float  # what H would be, about, if nothing were paid for the weights

    @property
    def exact(self) -> bool:
        """Whether all entries of B have a covariance of their own."""
        return _is_exact(*self.B.shape)

    @cached_property
    def sandwich(self) -> Sandwich:
        """Cov(D) / sigma^2, (k q, k q), columns of D one after the other; (k, k) if not exact."""
        floor = RANK_TOLERANCE * self.reference
        if not self.exact:
            return _sandwich(self.information[0], self.excess[0], floor)
        H, N = (_assemble(blocks, self.B.shape[1]) for blocks in (self.information, self.excess))
        return _sandwich(H, N, floor)

    @property
    def spare_rows(self) -> float:
        """Rows left once every task has paid for its intercept and its weights."""
        paid = self.B.shape[1] + (self.mean is not None)
        return float(np.maximum(self.n - paid, 0.0).sum())

    @cached_property
    def noise(self) -> np.ndarray:
        """Noise variances, with all degrees of freedom paid for that the span costs, (T,)."""
        k, q = self.B.shape[1], self.Q.shape[1]
        left = max(self.spare_rows - k * q, 1.0)
        extra = self.sandwich.trace * (1 if self.exact else q)
        return self.variance * (left / max(left - extra, 1.0))

    @cached_property
    def span_covariance(self) -> SpanCovariance:
        """Cov(D) by blocks, or K (x) shape^-1 where B has too many entries.

        The approximation takes S_t = trace_t * shape for every task, as is right when the tasks'
        features have one covariance and rows are many; in whitened features shape is near the
        identity. What the inverse of H gains from varying around that mean is the gain of a
        Wishart matrix of k q dimensions, rows / (rows - k q - 1).
        """
        k, q = self.B.shape[1], self.Q.shape[1]
        if not self.exact:
            gain = self.spare_rows / max(self.spare_rows - k * q - 1, 1.0)
            K = gain * _common_level(self.noise) * self.sandwich.covariance
            floor = RANK_TOLERANCE / max(q, 1)
            return SpanCovariance(K.reshape(-1, 1), _inverse(self.shape, floor)[None])
        C = _common_level(self.noise) * self.sandwich.covariance.reshape(k, q, k, q)
        first, second = np.triu_indices(k)
        mix = np.zeros((k, k, len(first)))
        mix[first, second, np.arange(len(first))] = 1.0
        terms = np.stack([C[a, :, b, :] for a, b in zip(first, second, strict=True)])
        terms[first != second] += terms[first != second].transpose(0, 2, 1)
        return SpanCovariance(mix.reshape(k * k, -1), terms)

    @cached_property
    def weights_covariance(self) -> np.ndarray:
        """Covariance of w_t in the given span, its second-order term included, (T, k, k)."""
        E = self.span_covariance.trace_with(self.shape)
        taken = self.spare[:, None, None] * (self.inverse @ E @ self.inverse)
        return self.noise[:, None, None] * (self.inverse + taken + self.singular)

    @cached_property
    def coef_std(self) -> np.ndarray:
        """Standard errors of the coefficients in the user's units, (T, d)."""
        B, A = self.canonical.to_user(self.B), self.canonical.to_user(self.Q)
        # Rows of size one: the squares of very large or small units need not exist.
        unit = np.abs(np.column_stack([B, A])).max(axis=1)
        inverse_unit = np.divide(1.0, unit, out=np.zeros_like(unit), where=unit > 0)[:, None]
        B, A = B * inverse_unit, A * inverse_unit
        with one_blas_thread():
            variance = self.span_covariance.diagonal(self.W, A)
            for part in _parts(len(self.W), self.B.size):
                taken = self.inverse[part] @ self.cross[part]  # (m, k, q)
                product = self.span_covariance.times(self.W[part], taken)
                inner = self.weights_covariance[part] + product @ taken.transpose(0, 2, 1)
                variance[part] += np.einsum("da,tab,db->td", B, inner, B, optimize=True)
                variance[part] -= 2 * np.einsum("da,tad->td", B, product @ A.T)
        return np.sqrt(np.maximum(variance, 0.0)) * unit

    def response_std(self, X: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Standard deviations of new responses at rows X (m, d) of tasks ``codes`` (m,), (m,)."""
        units, P = self.canonical.units, self.canonical.P
        out = np.empty(len(X))
        with one_blas_thread():
            for t, rows in _by_task(codes):
                z = X[rows] * units.scale - units.origin * units.scale
                z = z if P is None else z @ P
                variance = self.noise[t]
                if self.mean is not None:
                    z = z - self.mean[t]
                    variance = variance * (1 + 1 / self.n[t])
                inner = z @ self.B
                outer = z @ self.Q - inner @ self.inverse[t] @ self.cross[t]
                product = self.span_covariance.times(self.W[t : t + 1], outer[None])[0]
                slopes = np.einsum("ia,ab,ib->i", inner, self.weights_covariance[t], inner)
                slopes += np.einsum("iq,iq->i", product, outer)
                out[rows] = np.sqrt(np.maximum(slopes, 0.0) + variance)
        return out / units.y_scale

    def representation_covariance(self, representation: np.ndarray) -> np.ndarray | None:
        """Cov(vec B) (k d, k d) for a basis (d, k) of this span in the user's units.

        Columns of B are stacked. None where B has too many entries.
        """
        if not self.exact:
            return None
        span, A = self.canonical.to_user(self.B), self.canonical.to_user(self.Q)
        change = np.linalg.lstsq(span, representation, rcond=None)[0]
        jacobian = np.kron(change.T, A)  # of vec(A D change)
        covariance = jacobian @ self.sandwich.covariance @ jacobian.T
        return _common_level(self.noise) * (covariance + covariance.T) / 2


def span_uncertainty(
    statistics: Statistics,
    canonical: Canonical,
    B: np.ndarray,
    W: np.ndarray,
    noise: np.ndarray,
    degrees: np.ndarray,
) -> SpanUncertainty:
    """One pass over the statistics for what standard errors need.

    Parameters
    ----------
    statistics : Statistics
        In canonical features.
    canonical : Canonical
    B : ndarray of shape (d', k)
    W : ndarray of shape (k, T)
        Weights for the responses of the statistics, without the task scale of the objective.
    noise, degrees : ndarray of shape (T,)
        Noise variances in the units of the statistics, and their degrees of freedom.
    """
    d, k = B.shape
    T = statistics.n_tasks
    basis, upper = np.linalg.qr(B, mode="complete")
    # As they lie in memory so do they lie in a file, and products keep their last bits.
    B, Q, W = basis[:, :k].copy(), basis[:, k:].copy(), (upper[:k] @ W).T
    omega = np.divide(_common_level(noise), noise, out=np.ones(T), where=noise > 0)
    (pooled, blocks, reference), (inverse, singular, cross, spare) = statistics.map_shards(
        partial(_span_sums, B=B, Q=Q), W, noise, omega
    )
    shape = Q.T @ pooled.reshape(d, d) @ Q
    shape /= max(float(np.trace(shape)), np.finfo(float).tiny)
    if _is_exact(d, k):
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
    """The pass itself: sums of S_t, of blocks of H and N and for ``reference``; then per task."""
    (d, k), T = B.shape, len(W)
    first, second = np.triu_indices(k)
    inverse, values, vectors = np.empty((T, k, k)), np.empty((T, k)), np.empty((T, k, k))
    cross, spare, pooled = np.empty((T, k, d - k)), np.empty(T), np.zeros(d * d)
    exact, reference = _is_exact(d, k), 0.0
    blocks = np.zeros((2, len(first), d * d if exact else 0))
    with one_blas_thread():
        for part in _parts(T, d * d):
            S = _grams(statistics, part)
            BG = B.T @ S
            values[part], vectors[part] = np.linalg.eigh(BG @ B)
            inverse[part] = _inverse_of(values[part], vectors[part])
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
    return sums, (inverse, _missing_of(values, vectors), cross, spare)


class CrossSums:
    """Sums over a new task's rows of all features, about an origin, for the error of its span.

    Attributes
    ----------
    n, y : float
    x, xy : ndarray of shape (d,)
        Sums of x, and of x y.
    fx : ndarray of shape (k, d)
        Sum of B'x x'.
    """

    def __init__(self, B: np.ndarray) -> None:
        d, k = B.shape
        self.n, self.y = 0.0, 0.0
        self.x, self.xy, self.fx = np.zeros(d), np.zeros(d), np.zeros((k, d))

    def add(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray, B: np.ndarray) -> None:
        """Add rows X (m, d), y (m,) of weights (m,)."""
        with np.errstate(over="ignore", invalid="ignore"):  # only standard errors suffer
            weighted = weight[:, None] * X
            self.n += float(weight.sum())
            self.y += float(weight @ y)
            self.x += weighted.sum(axis=0)
            self.xy += y @ weighted
            self.fx += (X @ B).T @ weighted

    def moments(
        self, B: np.ndarray, w: np.ndarray, centred: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean (d,) of the rows, B'G (k, d) and the score X'(y - XBw) (d,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            mean = self.x / max(self.n, np.finfo(float).tiny) * centred
            cross = self.fx - np.outer(B.T @ self.x, mean)
            return mean, cross, self.xy - self.y * mean - w @ cross


class SpanError(NamedTuple):
    """What the error of a given span does to new tasks."""

    covariance: np.ndarray  # (k d, k d) of the entries of B, columns one after the other
    mean: np.ndarray  # (T, d) of the features about ``origin``; zero without intercepts
    cross: np.ndarray  # (T, k, d) B'G_t
    score: np.ndarray  # (T, d) X_t'(y_t - X_t B w_t)


@dataclass(frozen=True)
class WeightsUncertainty:
    """Standard errors of new tasks v_t = B w_t in a given span.

    Where B has a covariance, a change D of it moves the estimate by

        D w_t + B L_t (D'X_t'(residuals) - B'G_t D w_t)

    with L_t the inverse of the normal matrix of w_t, the prior included. Off the span the error
    is D times the true weights, of which E[w_t w_t'] is that of the estimate and, where it was
    shrunk by a prior, the posterior covariance; least squares has it in the estimate already.
    """

    B: np.ndarray  # (d, k)
    W: np.ndarray  # (T, k)
    noise: np.ndarray  # (T,)
    degrees: np.ndarray  # (T,)
    n: np.ndarray  # (T,)
    origin: np.ndarray  # (T, d)
    centre: np.ndarray | None  # (T, k) mean of B'(x - origin); None without intercepts
    covariance: np.ndarray  # (T, k, k) of w_t in the given span
    inverse: np.ndarray  # (T, k, k) L_t
    shrunk: bool  # by a prior
    error: SpanError | None

    def representation_covariance(self, representation: np.ndarray) -> np.ndarray | None:
        """Covariance of the entries of the span that was given, (k d, k d), if it came with one."""
        return None if self.error is None else self.error.covariance

    @cached_property
    def response(self) -> np.ndarray:
        """Change of w_t with the entries of B, beside their use in v_t = B w_t, (T, k, k d)."""
        assert self.error is not None
        T, k = self.W.shape
        change = -np.einsum("ta,tcj->tcaj", self.W, self.error.cross)
        change[:, np.arange(k), np.arange(k)] += self.error.score[:, None, :]
        return self.inverse @ change.reshape(T, k, -1)

    @cached_property
    @np.errstate(over="ignore", invalid="ignore")
    def coef_std(self) -> np.ndarray:
        """Standard errors of the coefficients, (T, d)."""
        inner, outer = self.covariance, 0.0
        if self.error is not None:
            (T, k), d = self.W.shape, len(self.B)
            C = self.error.covariance.reshape(k, d, k, d)
            product = self.response @ self.error.covariance
            inner = inner + product @ self.response.transpose(0, 2, 1)
            moved = np.einsum("tcaj,ta->tcj", product.reshape(T, k, k, d), self.W)
            squares = self.W[:, :, None] * self.W[:, None, :] + self.covariance * self.shrunk
            outer = np.einsum("tab,abj->tj", squares, np.einsum("ajbj->abj", C))
            outer += 2 * np.einsum("jc,tcj->tj", self.B, moved)
        variance = np.einsum("ja,tab,jb->tj", self.B, inner, self.B, optimize=True) + outer
        return np.sqrt(np.maximum(variance, 0.0))

    @np.errstate(over="ignore", invalid="ignore")
    def response_std(self, X: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Standard deviations of new responses at rows X (m, d) of tasks ``codes`` (m,), (m,)."""
        out = np.empty(len(X))
        for t, rows in _by_task(codes):
            z = X[rows] - self.origin[t]
            inner, variance = z @ self.B, self.noise[t]
            if self.centre is not None:
                inner, variance = inner - self.centre[t], variance * (1 + 1 / self.n[t])
            slopes = np.einsum("ia,ab,ib->i", inner, self.covariance[t], inner)
            if self.error is not None:
                z = z - self.error.mean[t]
                moved = inner @ self.response[t] + np.kron(self.W[t], z)
                slopes += np.einsum("ij,ij->i", moved @ self.error.covariance, moved)
                if self.shrunk:
                    slopes += np.einsum("ij,jl,il->i", z, self._shrunken_part(t), z, optimize=True)
            out[rows] = np.sqrt(np.maximum(slopes, 0.0) + variance)
        return out

    def _shrunken_part(self, t: int) -> np.ndarray:
        """E[D Cov(w_t) D'], (d, d)."""
        assert self.error is not None
        d, k = self.B.shape
        C = self.error.covariance.reshape(k, d, k, d)
        return np.einsum("ab,ajbl->jl", self.covariance[t], C, optimize=True)


def weights_covariance(
    F: np.ndarray, noise: float, root: np.ndarray | None, unit: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Covariance of the weights of new tasks, and the inverse of their normal matrices.

    With a prior of covariance Sigma = LL', sigma^2 (F'F + sigma^2 Sigma^-1)^-1 and its part
    without sigma^2, so written that neither Sigma nor F'F need have an inverse; without a prior
    (F'F)^-1 on the span, very large along weights on which a task has no rows.

    Parameters
    ----------
    F : ndarray of shape (T, p, k)
        Factors of the rows in the span.
    noise : float
        sigma^2.
    root : ndarray of shape (k, k) or None
        L; None is a flat prior.
    unit : ndarray of shape (k, r)
        B @ unit is an orthonormal basis of the span.

    Returns
    -------
    covariance, inverse : ndarray of shape (T, k, k)
    """
    A = unit if root is None else root
    FA = F @ A
    # A power of two for each task, so that very large or small squares exist.
    scale = np.ldexp(1.0, np.frexp(np.abs(FA).max(axis=(1, 2), keepdims=True))[1])
    FA = FA / scale
    values, vectors = np.linalg.eigh(FA.transpose(0, 2, 1) @ FA)
    vectors = A @ vectors
    if root is None:
        vectors /= scale
        inverse = _inverse_of(values, vectors)
        return noise * (inverse + _missing_of(values, vectors)), inverse
    scaled_noise = np.broadcast_to(noise / scale[:, 0] / scale[:, 0], values.shape)
    values = np.maximum(values, 0.0) + scaled_noise
    share = np.divide(scaled_noise, values, out=np.ones_like(values), where=values != 0)
    reciprocal = np.divide(1.0, values, out=np.zeros_like(values), where=values != 0)
    covariance = (vectors * share[:, None, :]) @ vectors.transpose(0, 2, 1)
    vectors /= scale
    return covariance, (vectors * reciprocal[:, None, :]) @ vectors.transpose(0, 2, 1)


def _is_exact(d: int, k: int) -> bool:
    return k * d <= LARGEST_EXACT


def _parts(n_tasks: int, size: int) -> Iterator[slice]:
    """Slices of tasks that have about ``BLOCK`` numbers together, ``size`` each."""
    step = max(BLOCK // max(size, 1), 1)
    return (slice(lo, min(lo + step, n_tasks)) for lo in range(0, n_tasks, step))


def _by_task(codes: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each code with the positions it stands at."""
    order = np.argsort(codes, kind="stable")
    found, starts = np.unique(codes[order], return_index=True)
    return zip(found.tolist(), np.split(order, starts[1:]), strict=True)


def _grams(statistics: Statistics, part: slice) -> np.ndarray:
    """Grams of some tasks, (m, d, d)."""
    d = statistics.n_features
    out = np.empty((part.stop - part.start, d, d))
    for G, t in zip(out, range(part.start, part.stop), strict=True):
        if isinstance(statistics, GramStatistics):
            cpu.unpack(statistics.packed[t], G)
        else:
            rows = slice(statistics.starts[t], statistics.starts[t + 1])
            X = statistics.X[rows]
            np.matmul(X.T, statistics.weight[rows, None] * X, out=G)
    return out


def _common_level(noise: np.ndarray) -> float:
    """A noise variance that stands for all, zero where there is none."""
    positive = noise[noise > 0]
    return float(np.exp(np.log(positive).mean())) if len(positive) else 0.0


def _inverse_of(values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Pseudo-inverses (T, k, k) from eigenvalues (T, k), ascending, and eigenvectors."""
    kept = values > RANK_TOLERANCE * values[:, -1:].clip(min=0.0)
    inverse = np.divide(1.0, values, out=np.zeros_like(values), where=kept)
    return (vectors * inverse[:, None, :]) @ vectors.transpose(0, 2, 1)


def _missing_of(values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """A very large variance, (T, k, k), along the weights on which a task has no rows.

    Large, not infinite: the other coefficients of the task keep their finite standard errors.
    """
    kept = values > RANK_TOLERANCE * values[:, -1:].clip(min=0.0)
    largest = 1.0 / (RANK_TOLERANCE * max(float(values.max(initial=0.0)), 1.0))
    return (vectors * np.where(kept, 0.0, largest)[:, None, :]) @ vectors.transpose(0, 2, 1)


def _assemble(blocks: np.ndarray, k: int) -> np.ndarray:
    """The symmetric (k q, k q) matrix of its upper blocks (k (k + 1) / 2, q, q)."""
    q = blocks.shape[1]
    out = np.empty((k, q, k, q))
    for block, a, b in zip(blocks, *np.triu_indices(k), strict=True):
        out[a, :, b, :] = out[b, :, a, :] = (block + block.T) / 2
    return out.reshape(k * q, k * q)


def _sandwich(H: np.ndarray, N: np.ndarray, floor: float) -> Sandwich:
    inverse = _inverse(H, floor)
    product = inverse @ N
    left = np.eye(len(H)) + product
    return Sandwich(left @ inverse @ left.T, float(np.trace(product)))


def _inverse(H: np.ndarray, floor: float) -> np.ndarray:
    """Inverse of a positive H; directions without information get the variance 1 / floor."""
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
