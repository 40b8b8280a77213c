"""The rows of one task as a stream: sums for least squares and ridge, and Algorithm 2.

Per task we store the triangular factor of the rows (1, f, y), f = B'x: adding rows is one QR of the
factor above them. Its lower part is the factor of the centred rows, so nothing is squared and the
residuals keep their digits.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from sharedspan.estimators.parameters import above_zero, at_least, one_of, option_names
from sharedspan.estimators.span_prior import SpanPrior, as_array

FIRST_ROWS = 32  # of each task: they set the step, the centre and the constant feature of "sgd"


@dataclass(frozen=True)
class DescentOptions:
    """The inputs of Algorithm 2, as ``sgd_options`` of NewTaskRegressor gives them."""

    step_size: float | None = None  # eta_0; None is 1 / (3 trace) from the first rows
    constant_rows: int = 0  # h
    start: np.ndarray | None = None  # w^(0), (k,); None is zero
    clip: bool = True
    as_printed: bool = False
    stored_axes = "step_size constant_rows start:k clip as_printed"

    @classmethod
    def of(cls, options: dict[str, Any] | None, k: int | None = None) -> DescentOptions:
        """The options, checked; the shape of the start only for a given k."""
        known = tuple(field.name for field in fields(cls))
        given = option_names("sgd_options", options, known)
        if given.get("step_size") is not None:
            above_zero("step_size", given["step_size"])
            given["step_size"] = float(given["step_size"])
        at_least("constant_rows", given.get("constant_rows", 0), 0, numbers.Integral)
        for name in ("clip", "as_printed"):
            one_of(name, given.get(name, False), (True, False))
        if given.get("as_printed") and given.get("clip"):
            raise ValueError(
                "as_printed=True cannot be combined with clip=True: leave out one of these "
                "sgd_options."
            )
        if given.get("start") is not None:
            shape = None if k is None else (k,)
            given["start"] = as_array("start", given["start"], shape)
        return cls(**({"clip": False} if given.get("as_printed") else {}) | given)


class Descent:
    """Algorithm 2: one pass of stochastic gradient descent, w <- w - eta_i (f_i'w - y_i) f_i.

    With h constant rows and K' = floor((K2 - h) / ln(K2 - h)), eta_i = eta_0 / 2^l, where l = 0 up
    to i = K' + h, and later l = floor((i - h) / K'), i = 0 .. K2 - 1, as in the paper's display.
    As printed, the loop has l = floor((i + 1 - h) / K') from i = h on, so that the step is halved
    one row earlier (the first time two), and ends before the last row: its result is w^(K2 - 1),
    where the theorem has w^(K2).

    eta_0 = 1 / (3 trace), with the trace the mean of |f|^2 over the first min(K2, 32) rows. Until
    these are complete, each new row restarts the pass with the trace so far. The clip
    min(eta_i, 2 / |f_i|^2) is a safeguard of our own: a larger step enlarges the row's residual.

    With an intercept, f and y are centred at their means over the first rows, and f has one feature
    more, a constant as large as the root mean square of the others.
    """

    options: DescentOptions
    stored_axes = "horizon intercept phase first:ne seen centre:e unit constant eta0 w:e options"

    def __init__(self, horizon: int, k: int, intercept: bool, options: DescentOptions) -> None:
        self.horizon, self.intercept, self.options = horizon, intercept, options
        decaying = horizon - options.constant_rows
        self.phase = max(1, int(decaying / math.log(decaying))) if decaying > 1 else 1
        self.first = np.empty((0, k + 1))  # the first rows (f, y)
        self.seen = 0

    @staticmethod
    def upgraded(values: dict[str, Any]) -> dict[str, Any]:
        """The attributes, given those of version 0.1, which had no options."""
        return {"options": DescentOptions()} | values

    def add(self, rows: np.ndarray) -> None:
        """Continue with rows (f, y) of shape (rows, k + 1)."""
        missing = min(self.horizon, FIRST_ROWS) - len(self.first)
        with np.errstate(over="ignore", invalid="ignore"):  # without the clip it may diverge
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
        if self.options.step_size is not None:
            self.eta0 = self.options.step_size * self.unit * self.unit
        self.w, self.seen = np.zeros(k + 1), 0
        if self.options.start is not None:
            self.w[:k] = self.options.start * self.unit
        self._descend(self.first)

    def _descend(self, rows: np.ndarray) -> None:
        rows = rows - self.centre
        targets = rows[:, -1].copy()
        rows[:, -1] = self.constant * self.unit
        rows /= self.unit
        updates = self.horizon - self.options.as_printed
        for i, (f, target) in enumerate(zip(rows, targets, strict=True), start=self.seen):
            norm = f @ f
            if norm == 0 or i >= updates:
                continue
            if self.eta0 == math.inf:  # the first rows were zero: this one sets the step
                self.eta0 = 1 / (3 * norm)
            eta = self.eta0 / 2.0 ** self._halvings(i)
            if self.options.clip:
                eta = min(eta, 2 / norm)
            self.w -= eta * (f @ self.w - target) * f
        self.seen += len(rows)

    def _halvings(self, i: int) -> int:
        """l, the number of times that the step of row i = 0, 1, ... has been halved."""
        h = self.options.constant_rows
        if self.options.as_printed:
            return max(i + 1 - h, 0) // self.phase
        return 0 if i <= self.phase + h else (i - h) // self.phase

    def solution(self) -> tuple[np.ndarray, float]:
        """Weights (k,) and intercept."""
        w = self.w[:-1] / self.unit
        return w, float(self.centre[-1] - self.centre[:-1] @ w + self.constant * self.w[-1])


class Stream:
    """The rows of one task: their triangular factor, relative to the first row, and the descent."""

    stored_axes = "x0:d y0 n R:ee descent"

    def __init__(
        self, prior: SpanPrior, x: np.ndarray, y: float, horizon: int, options: DescentOptions
    ) -> None:
        k, one = prior.B.shape[1], prior.intercept
        # Relative to the first row, features far from zero keep their digits.
        self.x0, self.y0 = x * one, y * one
        self.n = 0.0
        self.R = np.zeros((k + 1 + one, k + 1 + one))
        self.descent = Descent(horizon, k, one, options) if prior.method == "sgd" else None

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
