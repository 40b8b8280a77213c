"""The evidence of a rank: its marginal likelihood, with weights and axes integrated out."""

from __future__ import annotations

from functools import partial
from math import lgamma

import numpy as np

from sharedspan.kernels.threads import one_blas_thread, over_tasks
from sharedspan.objective import Objective

ROUNDING = 1e-12  # noise below this share of the squared responses counts as rounding error
AT_ONCE = 2048  # tasks
EM_ROUNDS, EM_GAIN = 100, 0.01  # most rounds, and the least gain of log-likelihood per round


def log_evidence(
    objective: Objective, B: np.ndarray, W: np.ndarray, importance: np.ndarray, centred: bool
) -> float:
    """Log marginal likelihood of a rank, from its least squares fit.

    With Q an orthonormal basis of the span of B (d, k), y_t = X_t Q w_t + noise and w_t ~ N(0, C),
    the weights are integrated out exactly, and C and the noise variance are estimated by EM. Over
    the axes of C, uniform on the orthonormal frames, Laplace's approximation gives

        log p(y | Q, C) - 1/2 sum_ij log(1 + a_ij / m) - k/2 log T

    with a_ij the information on a rotation of axis i towards axis j > i, and m the information of
    the uniform distribution. Towards the d - k axes outside the span a_ij = mu_i, eigenvalues of
    sum_t n_t E[w_t w_t' | y] / sigma^2, the information for known weights; within the span
    a_ij = T (l_i - l_j)^2 / (l_i l_j), l = 1 + mu / T, as in Minka's formula. The last term is for
    the variances along the axes, as in BIC. Tasks may have fewer rows than features.

    Parameters
    ----------
    objective : Objective
    B, W : ndarray of shape (d, k) and (k, T)
    importance : ndarray of shape (T,)
        Precision of each task's noise relative to the others'.
    centred : bool
        Whether tasks have intercepts.
    """
    d, k = B.shape
    T = objective.n_tasks
    with one_blas_thread():
        Q = np.linalg.qr(B)[0]
        fitted = objective.solve_W(Q, Q.T @ B @ W)
        squares = float(importance @ objective.squares(Q, fitted))
        w = (fitted / objective.response).T  # (T, k)
        S = (importance * objective.n)[:, None, None] * objective.normal_matrices(Q)
        rows = float(np.maximum(objective.n - centred, 0.0).sum())
        floor = ROUNDING * float(importance @ sum_of_squares(objective)) / max(rows, 1.0)
        value, mean, spread, variance = _integrated(S, w, squares, rows, floor)
        size = importance * objective.n
        M = (size[:, None] * mean).T @ mean + np.einsum("t,tij->ij", size, spread)
        mu = np.maximum(np.linalg.eigvalsh(M / variance), 0.0)
    return float(value - _axes_cost(mu, d, T) - k / 2 * np.log(T))


def _axes_cost(mu: np.ndarray, d: int, T: int) -> float:
    """The cost in log evidence of estimating the axes, with information mu (k,) on each."""
    k = len(mu)
    free = k * (d - k) + k * (k - 1) // 2
    if free == 0:
        return 0.0
    within = 1 + mu / T
    first, second = np.triu_indices(k, 1)
    gaps = (within[first] - within[second]) ** 2 / (within[first] * within[second])
    uniform = 2 * np.pi / np.exp(2 / free * _log_frames(d, k))
    outside = (d - k) * np.log1p(mu / uniform).sum()
    return float(0.5 * (outside + np.log1p(T * gaps / uniform).sum()))


def _integrated(
    S: np.ndarray, w: np.ndarray, squares: float, rows: float, floor: float
) -> tuple[float, np.ndarray, np.ndarray, float]:
    """Log-likelihood with weights N(0, C) integrated out, C and the noise variance by EM.

    Parameters
    ----------
    S : ndarray of shape (T, k, k)
        Q'X_t'X_t Q.
    w : ndarray of shape (T, k)
        Least squares weights.
    squares : float
        Residual sum of squares of the least squares fit, over all tasks.
    rows : float
        Rows minus intercepts.
    floor : float
        Least noise variance.

    Returns
    -------
    value : float
    mean, spread : ndarray of shape (T, k) and (T, k, k)
        Posterior moments of the weights.
    variance : float
        Noise variance.
    """
    T, k = w.shape
    rows = max(rows, 1.0)
    c = np.einsum("tij,tj->ti", S, w)
    variance = max(squares / max(rows - T * k, 1.0), floor, np.finfo(float).tiny)
    C = w.T @ w / T
    value, spread, mean, log_det = -np.inf, np.empty((T, k, k)), np.empty((T, k)), np.empty(T)
    for _ in range(EM_ROUNDS):
        # A root of C instead of its inverse: C may be singular.
        values, U = np.linalg.eigh(C)
        posteriors = S, c, U * np.sqrt(np.maximum(values, 0.0)), variance, spread, mean, log_det
        over_tasks(partial(_posteriors, *posteriors), T, 50.0 * S.size)
        before = value
        misfit = squares + np.sum((w - mean) * c)
        value = -0.5 * (rows * np.log(2 * np.pi * variance) + misfit / variance + log_det.sum())
        if value - before < EM_GAIN:
            break
        off = w - mean
        C = (mean.T @ mean + spread.sum(axis=0)) / T
        residual = squares + np.sum((S @ off[:, :, None])[:, :, 0] * off) + np.vdot(S, spread)
        variance = max(residual / rows, floor, np.finfo(float).tiny)
    return float(value), mean, spread, variance


def _posteriors(
    S: np.ndarray, c: np.ndarray, root: np.ndarray, variance: float, spread: np.ndarray,
    mean: np.ndarray, log_det: np.ndarray, first: int, last: int,
) -> None:  # fmt: skip
    """Write the posteriors of the weights of tasks first <= t < last, and log |I + root'S root|.

    S is relative to the noise variance there, and the weights are N(0, root root').
    """
    for lo in range(first, last, AT_ONCE):
        part = slice(lo, min(lo + AT_ONCE, last))
        L = np.linalg.cholesky(np.eye(len(root)) + root.T @ S[part] @ root / variance)
        half = np.linalg.solve(L, np.broadcast_to(root.T, L.shape))
        np.matmul(half.swapaxes(1, 2), half, out=spread[part])
        mean[part] = (spread[part] @ c[part, :, None])[:, :, 0] / variance
        log_det[part] = 2 * np.log(np.einsum("tii->ti", L)).sum(axis=1)


def _log_frames(d: int, k: int) -> float:
    """Log volume of the sets of k orthonormal vectors of R^d, each up to its sign."""
    halves = (n / 2 * np.log(np.pi) - lgamma(n / 2) for n in range(d - k + 1, d + 1))
    return float(sum(halves))


def sum_of_squares(objective: Objective) -> np.ndarray:
    """Squared responses of each task (T,), centred if there are intercepts."""
    nothing = np.zeros((objective.n_features, 1)), np.zeros((1, objective.n_tasks))
    return objective.squares(*nothing)
