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

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sharedspan.kernels.cpu import quadratic_forms
from sharedspan.kernels.dense import RANK_TOLERANCE
from sharedspan.kernels.grouping import order_by_code
from sharedspan.kernels.threads import one_blas_thread, over_tasks

ROWS_AT_ONCE = 1 << 10  # rows whose standard deviations are computed together
TASKS_AT_ONCE = 1 << 8  # tasks whose standard errors are computed together


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
    @np.errstate(over="ignore", invalid="ignore")
    def coef_std(self) -> np.ndarray:
        """Standard errors of the coefficients, (T, d)."""
        out = np.empty((len(self.W), len(self.B)))
        for lo in range(0, len(out), TASKS_AT_ONCE):
            part = slice(lo, lo + TASKS_AT_ONCE)
            if self.error is None:
                inner, out[part] = self.covariance[part], 0.0
            else:
                inner, out[part] = self._span_error(self.error, part)
            out[part] += np.einsum("ja,tab,jb->tj", self.B, inner, self.B, optimize=True)
            out[part] = np.sqrt(np.maximum(out[part], 0.0))
        return out

    def _span_error(self, error: SpanError, part: slice) -> tuple[np.ndarray, np.ndarray]:
        """Covariances of w_t (m, k, k) with an error of B, and its variances outside (m, d)."""
        W, inner = self.W[part], self.covariance[part]
        (m, k), d = W.shape, len(self.B)
        C = error.covariance.reshape(k, d, k, d)
        # The derivative of w_t with respect to the entries of B, (m, k, k d).
        change = -np.einsum("ta,tcj->tcaj", W, error.cross[part])
        change[:, np.arange(k), np.arange(k)] += error.score[part, None, :]
        response = self.inverse[part] @ change.reshape(m, k, -1)
        product = (response.reshape(m * k, -1) @ error.covariance).reshape(response.shape)
        moved = np.einsum("tcaj,ta->tcj", product.reshape(m, k, k, d), W)
        squares = W[:, :, None] * W[:, None, :] + inner * self.shrunk
        outer = np.einsum("tab,abj->tj", squares, np.einsum("ajbj->abj", C), optimize=True)
        outer += 2 * np.einsum("jc,tcj->tj", self.B, moved)
        return inner + product @ response.transpose(0, 2, 1), outer

    def response_std(self, X: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Standard deviations of new responses at rows X (m, d) of tasks ``codes`` (m,), (m,)."""
        noise = self.noise if self.centre is None else self.noise * (1 + 1 / self.n)
        out, covariance = np.empty(len(X)), np.ascontiguousarray(self.covariance)

        @np.errstate(over="ignore", invalid="ignore")
        def variances(rows: np.ndarray) -> None:
            t = codes[rows]
            z = X[rows] - self.origin[t]
            inner = z @ self.B
            if self.centre is not None:
                inner -= self.centre[t]
            slopes = np.empty(len(rows))
            quadratic_forms(inner, covariance, t, slopes)
            if self.error is not None:
                slopes += self._span_error_at(self.error, z - self.error.mean[t], inner, t)
            out[rows] = np.sqrt(np.maximum(slopes, 0.0) + noise[t])

        cost = self.B.size if self.error is None else 2 * self.error.covariance.size
        by_task(variances, codes, float(cost))
        return out

    def _span_error_at(
        self, error: SpanError, z: np.ndarray, inner: np.ndarray, t: np.ndarray
    ) -> np.ndarray:
        """Variances (m,) that an error of B adds at centred rows z (m, d) = ``inner`` (m, k)."""
        (m, d), k = z.shape, inner.shape[1]
        # The derivative with respect to B, w (z - L B'G inner)' + (L inner) score'.
        solved = np.einsum("ia,iab->ib", inner, self.inverse[t])
        rest = z - np.einsum("ia,iaj->ij", solved, error.cross[t])
        moved = self.W[t][:, :, None] * rest[:, None, :]
        moved += solved[:, :, None] * error.score[t][:, None, :]
        moved = moved.reshape(m, k * d)
        out = np.einsum("ij,ij->i", moved @ error.covariance, moved)
        if self.shrunk:  # E[D Cov(w_t) D'] of weights shrunk by a prior
            tasks, of = np.unique(t, return_inverse=True)
            C = error.covariance.reshape(k, d, k, d).transpose(0, 2, 1, 3).reshape(k * k, d * d)
            E = self.covariance[tasks].reshape(len(tasks), k * k) @ C
            forms = np.empty(m)
            quadratic_forms(np.ascontiguousarray(z), E.reshape(-1, d, d), of, forms)
            out += forms
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


def by_task(work: Callable[[np.ndarray], object], codes: np.ndarray, cost: float) -> None:
    """Call ``work(rows)`` for blocks of rows, in which the rows of a task are neighbours.

    Parameters
    ----------
    work : callable of an array of row numbers
    codes : ndarray of shape (rows,)
        The task of each row, 0 or more.
    cost : float
        Approximate number of floating-point operations of a row.
    """
    _, order = order_by_code(codes, int(codes.max(initial=0)) + 1)
    order = np.arange(len(codes)) if order is None else order

    def blocks(first: int, last: int) -> None:
        for lo in range(first, last, ROWS_AT_ONCE):
            work(order[lo : min(lo + ROWS_AT_ONCE, last)])

    with one_blas_thread():
        over_tasks(blocks, len(codes), len(codes) * cost)
