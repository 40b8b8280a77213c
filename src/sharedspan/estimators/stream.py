"""The rows of one task as a stream: sums for least squares and ridge, and Algorithm 2.

Per task we store the triangular factor of the rows (1, f, y), f = B'x: adding rows is one QR of the
factor above them. Its lower part is the factor of the centred rows, so nothing is squared and the
residuals keep their digits.
"""

from __future__ import annotations

import math

import numpy as np

from sharedspan.estimators.span_prior import SpanPrior

FIRST_ROWS = 32  # of each task: they set the step, the centre and the constant feature of "sgd"


class Descent:
    """Algorithm 2: one pass of stochastic gradient descent, w <- w - eta_i (f_i'w - y_i) f_i.

    eta_i = eta0 / 2^l with l = 0 up to i = K' = floor(K2 / ln K2), else floor(i / K'), and
    eta0 = 1 / (3 trace), the trace being the mean of |f|^2 over the first min(K2, 32) rows. Until
    these are complete, each new row restarts the pass with the trace so far.
    With an intercept, f and y are centred at their means over the first rows, and f has one feature
    more, a constant as large as the root mean square of the others.
    """

    stored_axes = "horizon intercept phase first:ne seen centre:e unit constant eta0 w:e"

    def __init__(self, horizon: int, k: int, intercept: bool) -> None:
        self.horizon, self.intercept = horizon, intercept
        self.phase = max(1, int(horizon / math.log(horizon))) if horizon > 1 else 1
        self.first = np.empty((0, k + 1))  # the first rows (f, y)
        self.seen = 0

    def add(self, rows: np.ndarray) -> None:
        """Continue with rows (f, y) of shape (rows, k + 1)."""
        missing = min(self.horizon, FIRST_ROWS) - len(self.first)
        if missing > 0:
            self.first = np.concatenate([self.first, rows[:missing]])
            self._start()
        self._descend(rows[max(missing, 0) :])

    def _start(self) -> None:
        n, k = len(self.first), self.first.shape[1] - 1
        self.centre = self.first.mean(axis=0) * self.intercept
        F = (self.first - self.centre)[:, :k]
        # A power of two, so that squares of very large or small features are finite and nonzero.
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
    """The rows of one task: their triangular factor, relative to the first row, and the descent."""

    stored_axes = "x0:d y0 n R:ee descent"

    def __init__(self, prior: SpanPrior, x: np.ndarray, y: float, horizon: int) -> None:
        k, one = prior.B.shape[1], prior.intercept
        # Relative to the first row, features far from zero keep their digits.
        self.x0, self.y0 = x * one, y * one
        self.n = 0.0
        self.R = np.zeros((k + 1 + one, k + 1 + one))
        self.descent = Descent(horizon, k, one) if prior.method == "sgd" else None

    def add(self, prior: SpanPrior, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> int:
        """Add rows; returns the number of rows beyond the horizon, which are left out."""
        late = 0
        if self.descent is not None:
            late = max(len(y) - (self.descent.horizon - self.descent.seen), 0)
            X, y, weight = (part[: len(part) - late] for part in (X, y, weight))
        if len(y):
            rows = np.column_stack([(X - self.x0) @ prior.B, y - self.y0])
            if self.descent is not None:
                self.descent.add(rows)
            if prior.intercept:
                rows = np.column_stack([np.ones(len(rows)), rows])
            rows *= np.sqrt(weight)[:, None]
            self.R = np.asarray(np.linalg.qr(np.concatenate([self.R, rows]), mode="r"))
            self.n += float(weight.sum())
        return late
