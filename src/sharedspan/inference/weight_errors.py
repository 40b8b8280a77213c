"""Standard errors of tasks in a given span: v_t = B w_t with w_t estimated and B given.

Within the span the weights have the covariance of least squares or, with a normal prior, the
posterior covariance (``weights_covariance``). If B itself has a covariance, a change D of B changes
the estimate by

    D w_t + B L_t (D'X_t'(residuals) - B'G_t D w_t)

with L_t the inverse of the normal matrix of w_t, including the prior. Outside the span the error is
D times the true weights, whose E[w_t w_t'] is the outer product of the estimate plus, for weights
shrunk by a prior, the posterior covariance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sharedspan.kernels.dense import RANK_TOLERANCE


class CrossSums:
    """Sums over the rows of a new task, about an origin, for the effect of an error of B.

    Attributes
    ----------
    n, y : float
    x, xy : ndarray of shape (d,)
        Sums of x, and of x y.
    fx : ndarray of shape (k, d)
        Sum of B'x x'.
    """

    stored_axes = "n y x:d xy:d fx:kd"

    def __init__(self, B: np.ndarray) -> None:
        d, k = B.shape
        self.n, self.y = 0.0, 0.0
        self.x, self.xy, self.fx = np.zeros(d), np.zeros(d), np.zeros((k, d))

    def add(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray, B: np.ndarray) -> None:
        """Add rows X (m, d), y (m,) with weights (m,)."""
        with np.errstate(over="ignore", invalid="ignore"):  # affects only standard errors
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


@dataclass(frozen=True)
class SpanError:
    """The covariance of a given span, and moments of new tasks for its effect on them."""

    covariance: np.ndarray  # (k d, k d) covariance of the entries of B, columns stacked
    mean: np.ndarray  # (T, d) means of the features about ``origin``; zero without intercepts
    cross: np.ndarray  # (T, k, d) B'G_t
    score: np.ndarray  # (T, d) X_t'(y_t - X_t B w_t)
    stored_axes = "covariance:ss mean:Td cross:Tkd score:Td"


@dataclass(frozen=True)
class WeightsUncertainty:
    """Standard errors of new tasks v_t = B w_t in a given span; see the module docstring."""

    B: np.ndarray  # (d, k)
    W: np.ndarray  # (T, k)
    noise: np.ndarray  # (T,)
    degrees: np.ndarray  # (T,)
    n: np.ndarray  # (T,)
    origin: np.ndarray  # (T, d)
    centre: np.ndarray | None  # (T, k) mean of B'(x - origin); None without intercepts
    covariance: np.ndarray  # (T, k, k) covariance of w_t in the given span
    inverse: np.ndarray  # (T, k, k) L_t
    shrunk: bool  # whether the weights have a prior
    error: SpanError | None
    stored_axes = "B:dk W:Tk noise:T degrees:T n:T origin:Td centre:Tk covariance:Tkk inverse:Tkk"

    def representation_covariance(self, representation: np.ndarray) -> np.ndarray | None:
        """Covariance of the entries of the given span, (k d, k d), if there is one."""
        return None if self.error is None else self.error.covariance

    @cached_property
    def response(self) -> np.ndarray:
        """Derivative of w_t with respect to the entries of B, (T, k, k d)."""
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
        for t, rows in group_by_task(codes):
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
                    # E[D Cov(w_t) D'] of weights shrunk by a prior, (d, d).
                    C = self.error.covariance.reshape(*self.B.T.shape, *self.B.T.shape)
                    moved = np.einsum("ab,ajbl->jl", self.covariance[t], C, optimize=True)
                    slopes += np.einsum("ij,jl,il->i", z, moved, z, optimize=True)
            out[rows] = np.sqrt(np.maximum(slopes, 0.0) + variance)
        return out


def weights_covariance(
    F: np.ndarray, noise: float, root: np.ndarray | None, unit: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Covariance of the weights of new tasks, and the inverse of their normal matrices.

    With a prior of covariance Sigma = LL', sigma^2 (F'F + sigma^2 Sigma^-1)^-1 and the inverse
    without sigma^2, computed without an inverse of Sigma or F'F; without a prior (F'F)^-1 on the
    span, very large along weights on which a task has no rows.

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
    # A power of two for each task, so that squares neither overflow nor underflow.
    scale = np.ldexp(1.0, np.frexp(np.abs(FA).max(axis=(1, 2), keepdims=True))[1])
    FA = FA / scale
    values, vectors = np.linalg.eigh(FA.transpose(0, 2, 1) @ FA)
    vectors = A @ vectors
    if root is None:
        vectors /= scale
        inverse = pseudo_inverses(values, vectors)
        return noise * (inverse + undetermined_variances(values, vectors)), inverse
    scaled_noise = np.broadcast_to(noise / scale[:, 0] / scale[:, 0], values.shape)
    values = np.maximum(values, 0.0) + scaled_noise
    share = np.divide(scaled_noise, values, out=np.ones_like(values), where=values != 0)
    reciprocal = np.divide(1.0, values, out=np.zeros_like(values), where=values != 0)
    covariance = (vectors * share[:, None, :]) @ vectors.transpose(0, 2, 1)
    vectors /= scale
    return covariance, (vectors * reciprocal[:, None, :]) @ vectors.transpose(0, 2, 1)


def pseudo_inverses(values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Pseudo-inverses (T, k, k) from eigenvalues (T, k), ascending, and eigenvectors."""
    inverse = np.divide(1.0, values, out=np.zeros_like(values), where=_determined(values))
    return (vectors * inverse[:, None, :]) @ vectors.transpose(0, 2, 1)


def undetermined_variances(
    values: np.ndarray, vectors: np.ndarray, largest: float | None = None
) -> np.ndarray:
    """A very large variance, (T, k, k), along the weights on which a task has no rows.

    Large, not infinite, so that the standard errors of the task's other coefficients are finite.
    ``largest`` is the largest eigenvalue of all tasks, if these are not all.
    """
    largest = float(values.max(initial=0.0)) if largest is None else largest
    variances = np.where(_determined(values), 0.0, 1.0 / (RANK_TOLERANCE * max(largest, 1.0)))
    return (vectors * variances[:, None, :]) @ vectors.transpose(0, 2, 1)


def _determined(values: np.ndarray) -> np.ndarray:
    """Mask (T, k) of the ascending eigenvalues that exceed rounding errors."""
    return values > RANK_TOLERANCE * values[:, -1:].clip(min=0.0)


def group_by_task(codes: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each task code with the positions of its rows."""
    order = np.argsort(codes, kind="stable")
    tasks, starts = np.unique(codes[order], return_index=True)
    return zip(tasks.tolist(), np.split(order, starts[1:]), strict=True)
