"""One task's rows as they stream by: sums for least squares and ridge, and Algorithm 2.

Per task we keep the triangular factor of the rows (1, f, y), f = B'x: adding rows is one QR of the
factor above them. Its lower part is the factor of the centred rows, so nothing is squared and the
residuals keep their digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

FIRST_ROWS = 32  # of each task: they set the step, the centre and the constant feature of "sgd"
RANK_TOL = 1e-11  # singular values below this part of the largest one are rounding


class Descent:
    """Algorithm 2: one pass of stochastic gradient descent, w <- w - eta_i (f_i'w - y_i) f_i.

    eta_i = eta0 / 2^l with l = 0 up to i = K' = floor(K2 / ln K2), else floor(i / K'), and
    eta0 = 1 / (3 trace), the trace being the mean of |f|^2 over the first min(K2, 32) rows. Until
    these are there, each new row starts the pass again with the trace so far.
    With an intercept f and y are taken about their means over the first rows, and f has one
    feature more, a constant as large as the root mean square of the others.
    """

    stored_axes = "horizon intercept phase first:ne seen centre:e unit constant eta0 w:e"

    def __init__(self, horizon: int, k: int, intercept: bool) -> None:
        self.horizon, self.intercept = horizon, intercept
        self.phase = max(1, int(horizon / math.log(horizon))) if horizon > 1 else 1
        self.first = np.empty((0, k + 1))  # the first rows (f, y)
        self.seen = 0

    def add(self, rows: np.ndarray) -> None:
        """Go on with rows (f, y) of shape (rows, k + 1)."""
        missing = min(self.horizon, FIRST_ROWS) - len(self.first)
        if missing > 0:
            self.first = np.concatenate([self.first, rows[:missing]])
            self._start()
        self._descend(rows[max(missing, 0) :])

    def _start(self) -> None:
        n, k = len(self.first), self.first.shape[1] - 1
        self.centre = self.first.mean(axis=0) * self.intercept
        F = (self.first - self.centre)[:, :k]
        # A power of two, so that squares of very large or small features exist: no digit changes.
        self.unit = 2.0 ** (int(np.frexp(np.abs(F).max())[1]) - 1)
        squares = np.sum((F / self.unit) ** 2) / max(n - self.intercept, 1)
        self.constant = (math.sqrt(squares / k) or 1.0) * self.intercept
        trace = squares + self.constant**2
        self.eta0 = 1 / (3 * trace) if trace > 0 else math.inf
        self.w, self.seen = np.zeros(k + 1), 0
        self._descend(self.first)

    def _descend(self, rows: np.ndarray) -> None:
        rows = rows - self.centre
        targets = rows[:, -1].copy()
        rows[:, -1] = self.constant * self.unit
        rows /= self.unit
        for i, (f, target) in enumerate(zip(rows, targets, strict=True), start=self.seen):
            norm = f @ f
            if norm == 0:
                continue
            if self.eta0 == math.inf:  # the first rows were zero: this one sets the step
                self.eta0 = 1 / (3 * norm)
            eta = self.eta0 / 2 ** (0 if i <= self.phase else i // self.phase)
            # Beyond 2 / |f|^2 a step enlarges the row's own residual: heavy tails would diverge.
            self.w -= min(eta, 2 / norm) * (f @ self.w - target) * f
        self.seen += len(rows)

    def solution(self) -> tuple[np.ndarray, float]:
        """Weights (k,) and intercept."""
        w = self.w[:-1] / self.unit
        return w, float(self.centre[-1] - self.centre[:-1] @ w + self.constant * self.w[-1])


class Stream:
    """The rows of one task: their triangular factor, about the first row, and the descent."""

    stored_axes = "x0:d y0 n R:ee descent"

    def __init__(self, plan: Plan, x: np.ndarray, y: float, horizon: int) -> None:
        k, one = plan.B.shape[1], plan.intercept
        # About the first row, features far from zero keep their digits.
        self.x0, self.y0 = x * one, y * one
        self.n = 0.0
        self.R = np.zeros((k + 1 + one, k + 1 + one))
        self.descent = Descent(horizon, k, one) if plan.method == "sgd" else None

    def add(self, plan: Plan, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> int:
        """Add rows; returns how many came after the horizon and were left out."""
        late = 0
        if self.descent is not None:
            late = max(len(y) - (self.descent.horizon - self.descent.seen), 0)
            X, y, weight = (part[: len(part) - late] for part in (X, y, weight))
        if len(y):
            rows = np.column_stack([(X - self.x0) @ plan.B, y - self.y0])
            if self.descent is not None:
                self.descent.add(rows)
            if plan.intercept:
                rows = np.column_stack([np.ones(len(rows)), rows])
            rows *= np.sqrt(weight)[:, None]
            self.R = np.asarray(np.linalg.qr(np.concatenate([self.R, rows]), mode="r"))
            self.n += float(weight.sum())
        return late


@dataclass(frozen=True)
class Plan:
    """The parameters as arrays."""

    method: str
    intercept: bool
    B: np.ndarray  # (d, k)
    unit: np.ndarray  # (k, r): B @ unit is an orthonormal basis of the span, so that |v| = |u|
    mean: np.ndarray  # (k,) of the prior
    root: np.ndarray | None  # (k, k) root of the prior's covariance; None for a flat prior
    noise: float | None
    stored_axes = "B:dk unit:kr mean:k root:kk"

    def solve(self, R: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, float]:
        """Weights (T, k) and the noise variance, from centred factors R (T, k + 1, k + 1).

        With Sigma = LL' and w = m + Lu, the prior's u minimises |b - Au|^2 + sigma^2 |u|^2 with
        A = F L and b = y - F m; no inverse of Sigma is needed.
        """
        F, y = R[:, :, :-1], R[:, :, -1]
        u, ranks = least_squares(F @ self.unit, y)
        weights = u @ self.unit.T
        free = np.maximum(n - self.intercept, 0.0)
        noise = self.noise
        if noise is None:
            degrees = float(np.maximum(free - ranks, 0.0).sum())
            if degrees > 0:
                noise = mean_square(y - np.einsum("tij,tj->ti", F, weights), degrees)
            else:
                noise = self._noise_without_spare_rows(F, y, free.sum())
        if self.method == "prior" and self.root is not None:
            u = ridge(F @ self.root, y - F @ self.mean, 0.0 if math.isnan(noise) else noise)
            weights = self.mean + u @ self.root.T
        return weights, float(noise)

    def _noise_without_spare_rows(self, F: np.ndarray, y: np.ndarray, free: float) -> float:
        """What the responses vary beyond the prior: E |y - Fm|^2 = |FL|^2 + free sigma^2.

        For a flat prior all of it, an upper bound. NaN where no task has rows that could tell.
        """
        if free == 0:
            return math.nan
        if self.root is None:
            return mean_square(y, free)
        varied, explained = mean_square(y - F @ self.mean, free), mean_square(F @ self.root, free)
        return max(varied - explained, 0.0) if explained < math.inf else 0.0


def mean_square(values: np.ndarray, count: float) -> float:
    """Sum of squares over a count; only where the result itself is too large is it infinite."""
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0:
        return 0.0
    root = largest * math.sqrt(float(np.sum((values / largest) ** 2)) / count)
    return root * root


def column_scale(A: np.ndarray) -> np.ndarray:
    """Largest magnitude in each column, one where a column is zero."""
    scale = np.abs(A).max(axis=-2)
    return np.where(scale > 0, scale, 1.0)


def orthonormal_coordinates(B: np.ndarray) -> np.ndarray:
    """U (k, r) such that BU is an orthonormal basis of the span of B."""
    scale = column_scale(B)
    _, s, Vt = np.linalg.svd(B / scale, full_matrices=False)
    positive = s > RANK_TOL * s[0]
    return Vt[positive].T / s[positive] / scale[:, None]


def ridge(A: np.ndarray, b: np.ndarray, penalty: float) -> np.ndarray:
    """Minimisers u (T, k) of |b - Au|^2 + penalty |u|^2, the shortest where they are not unique.

    Parameters
    ----------
    A : ndarray of shape (T, p, k)
    b : ndarray of shape (T, p)
    penalty : float
    """
    U, s, Vt = np.linalg.svd(A, full_matrices=False)
    positive = (s > RANK_TOL * s[:, :1]) & (s > 0)
    s = np.where(positive, s, 1.0)
    z = np.where(positive, np.einsum("tpr,tp->tr", U, b) / (s + penalty / s), 0.0)
    return np.einsum("trk,tr->tk", Vt, z)


def least_squares(A: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least squares u (T, k), the shortest where it is not unique, and the ranks of A (T,)."""
    scale = column_scale(A)[:, None, :]
    s = np.linalg.svd(A / scale, compute_uv=False)
    ranks = np.sum((s > RANK_TOL * s[:, :1]) & (s > 0), axis=1)
    # A unique solution does not depend on the scale of the columns, its digits do.
    unique = (ranks == A.shape[2])[:, None, None]
    scale = np.where(unique, scale, 1.0)
    return ridge(A / scale, b, 0.0) / scale[:, 0, :], ranks
