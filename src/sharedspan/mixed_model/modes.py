"""Working statistics of a generalised mixed model: rows weighted at the modes of their tasks.

A response has the log likelihood m l(y, eta) at its linear predictor eta = z'v_t + offset, and
v_t = b + u_t, u_t ~ N(0, C), as in ``likelihood.py`` with a noise variance of one. Around the mode
v_t of a task, where u_t = C e_t, its log likelihood is a quadratic with

    s_t = Z_t' l',     H_t = Z_t' W_t Z_t,     W_t = diag(-l'').

Newton's method for the mode is e <- K_t (v_t - b) + h_t, with K_t and h_t the terms of a Gaussian
task of Gram H_t that is anchored at v_t. The determinant of Laplace's approximation moves with the
mode. In first order that is the linear term a_t'(v_t - mode) with

    a_t = -1/2 sum_i (dw_i / d eta) (z_i' V_t z_i) z_i,

with V_t the covariance of v_t. With it the quadratics have the gradient of the approximation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sharedspan.families import Derivatives, Family, NegativeBinomial
from sharedspan.inputs.rows import TaskRows
from sharedspan.kernels.reweighting import (
    row_forms,
    row_products,
    weighted_products,
    weighted_sums,
)
from sharedspan.kernels.threads import over_tasks
from sharedspan.mixed_model.structures import Coefficients
from sharedspan.mixed_model.terms import Covariance, Scaling, WorkingTerms
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.working import WorkingStatistics

HELD_NUMBERS = 1 << 24  # numbers of rows in standard units that are held between turns
NEWTON_STEPS = 30  # of a task in one turn
SMALL_DECREMENT = 1e-9  # of the log likelihood of a task, that ends Newton's method
DISPERSION_STEP = 0.02  # of the logarithm, for the derivatives in the dispersion


class StandardRows(NamedTuple):
    """Rows of some tasks in standard units."""

    Z: np.ndarray  # (rows, size), p numbers of each row in use
    y: np.ndarray  # (rows,)
    weight: np.ndarray  # (rows,)
    offset: np.ndarray  # (rows,)
    starts: np.ndarray  # (m + 1,)
    first: int  # the first of the m tasks

    @property
    def owner(self) -> np.ndarray:
        """The place of each row's task among these, (rows,)."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def sum_by_task(self, values: np.ndarray) -> np.ndarray:
        """Sums (m,) of numbers (rows,)."""
        return np.add.reduceat(values, self.starts[:-1])


class Turn(NamedTuple):
    """The result of a pass over the rows."""

    statistics: WorkingStatistics
    scores: np.ndarray  # (T, p) e_t
    dispersion: tuple[float, float]  # derivatives in the log of the dispersion, first and second


class FamilyRows:
    """The rows of all tasks and their family: each turn of a fit reads them once.

    Parameters
    ----------
    rows : TaskRows
    canonical : Canonical
    scaling : Scaling
    family : Family
    intercept : bool
        Whether tasks have intercepts.
    """

    def __init__(
        self, rows: TaskRows, canonical: Canonical, scaling: Scaling, family: Family,
        intercept: bool,
    ) -> None:  # fmt: skip
        self.rows, self.canonical, self.scaling = rows, canonical, scaling
        self.family, self.intercept = family, intercept
        self.p = len(scaling.scale) + intercept
        self.size = -(-self.p // 8) * 8
        self.level = 0.0  # of the linear predictor, near that of all rows
        self.mode_tol = SMALL_DECREMENT
        self.coefficients = Coefficients.plain(self.p)
        self.n_tasks = rows.n_tasks
        self._ranges = list(rows.ranges(max(rows.block_rows // 4, 1)))
        self._held: dict[int, StandardRows] | None = None
        if rows.n_rows * self.size <= HELD_NUMBERS:
            self._held = {}

    def with_family(self, family: Family) -> FamilyRows:
        """A copy of the rows with another family."""
        other = object.__new__(FamilyRows)
        other.__dict__.update(vars(self), family=family)
        return other

    def with_coefficients(self, coefficients: Coefficients) -> FamilyRows:
        """A copy of the rows in which other coefficients vary."""
        other = object.__new__(FamilyRows)
        other.__dict__.update(vars(self), coefficients=coefficients)
        return other

    def take(self, ids: np.ndarray) -> FamilyRows:
        """The rows of some tasks."""
        rows = self.rows.take(ids)
        some = FamilyRows(rows, self.canonical, self.scaling, self.family, self.intercept)
        some.level, some.mode_tol = self.level, self.mode_tol
        some.coefficients = self.coefficients
        return some

    @property
    def n_chunks(self) -> int:
        """The number of chunks in which the rows are read."""
        return len(self._ranges)

    def read(self, chunk: int) -> StandardRows:
        """The rows of a part of the tasks."""
        if self._held is not None and chunk in self._held:
            return self._held[chunk]
        first, last = self._ranges[chunk]
        units, P = self.canonical.units, self.canonical.P
        (block,) = self.rows.blocks(first, last, whole=True)
        y = block.y.copy()  # not in the units of the statistics, which may be scaled
        X, _ = units.rows(block, P)
        begin = int(self.intercept)
        Z = np.zeros((len(y), self.size))
        np.subtract(X, self.scaling.centre, out=Z[:, begin : self.p])
        Z[:, begin : self.p] /= self.scaling.scale
        if begin:
            Z[:, 0] = 1.0
        offset = np.full(len(y), self.level) + block.offset
        read = StandardRows(Z, y, block.weight, offset, block.starts, first)
        if self._held is not None:
            self._held[chunk] = read
        return read

    def parts(self) -> Iterator[StandardRows]:
        """The rows of all tasks, part by part."""
        return (self.read(chunk) for chunk in range(self.n_chunks))

    def centre(self) -> None:
        """Subtract the level of all rows from the linear predictor, if tasks have intercepts."""
        if not self.intercept:
            return
        total = sum(float(part.weight.sum()) for part in self.parts())
        mean = sum(float(part.weight @ part.y) for part in self.parts()) / total
        offset = sum(float(part.weight @ part.offset) for part in self.parts()) / total
        self.level = self.family.link(mean) - offset
        if self._held is not None:
            self._held = {}

    def turn(
        self, b: np.ndarray, covariance: Covariance, scores: np.ndarray,
        b_covariance: np.ndarray | None = None, steps: int = NEWTON_STEPS,
    ) -> Turn:  # fmt: skip
        """One pass over the rows: the modes of all tasks, and their working statistics there.

        Parameters
        ----------
        b : ndarray of shape (p,)
        covariance : Covariance
        scores : ndarray of shape (T, p)
            e_t to start from.
        b_covariance : ndarray of shape (p, p), optional
            Covariance of b if it is integrated out.
        steps : int
            The most steps of Newton's method.
        """
        T, p = self.n_tasks, self.p
        packed = np.empty((T, p * (p + 1) // 2))
        score, linear, mode, e = (np.empty((T, p)) for _ in range(4))
        value, n = np.empty(T), np.empty(T)
        dispersion = np.zeros((self.n_chunks, 2))

        def work(first: int, last: int) -> None:
            for chunk in range(first, last):
                part = self.read(chunk)
                ids = slice(part.first, part.first + len(part.starts) - 1)
                at = _Mode(self, part, b, covariance, scores[ids], steps)
                V = at.covariances(b_covariance)
                packed[ids], score[ids], mode[ids], e[ids] = at.packed, at.score, at.v, at.e
                value[ids] = at.value + part.sum_by_task(self.family.constant(part.y, part.weight))
                n[ids] = part.sum_by_task(part.weight)
                linear[ids], dispersion[chunk] = at.linear_terms(V)

        over_tasks(work, self.n_chunks, 4.0 * self.rows.n_rows * p**2)
        statistics = WorkingStatistics(packed, score, mode, linear, value, n, self.intercept)
        slope, curvature = dispersion.sum(axis=0)
        return Turn(statistics, e, (float(slope), float(curvature)))


class _Mode:
    """The modes of the tasks of one part of the rows, by Newton's method with step halving."""

    def __init__(
        self, source: FamilyRows, part: StandardRows, b: np.ndarray, covariance: Covariance,
        scores: np.ndarray, steps: int,
    ) -> None:  # fmt: skip
        self.family, self.part, self.tol = source.family, part, source.mode_tol
        self.C, self.covariance = covariance.matrix, covariance
        m, p = len(part.starts) - 1, len(b)
        self.packed, self.score = np.empty((m, p * (p + 1) // 2)), np.empty((m, p))
        self.e, self.v = scores.copy(), np.empty((m, p))
        self.eta, self.value = np.empty(len(part.y)), np.empty(m)
        derivatives = [np.empty(len(part.y)) for _ in range(4)]
        self.derivatives = Derivatives(*derivatives)
        self.K = np.empty((m, p, p))
        left = self._climb(np.arange(m), b, steps)
        if len(left):  # from a bad start; the mean of all tasks is a safe one
            self.e[left] = 0.0
            left = self._climb(left, b, steps)
            self.K[left] = self._terms(left).K

    def _climb(self, active: np.ndarray, b: np.ndarray, steps: int) -> np.ndarray:
        """Newton's method for some of the tasks; those that are not at their modes remain."""
        m = len(self.e)
        merit, old = np.full(m, -np.inf), self.e.copy()
        for _ in range(max(steps, 1)):
            self._evaluate(active, b)
            e = self.e[active]
            reached = self.value[active] - 0.5 * np.einsum("ti,ti->t", e, e @ self.C)
            with np.errstate(invalid="ignore"):
                good = reached >= merit[active] - 1e-9 * (1 + np.abs(merit[active]))
            worse, better = active[~good], active[good]
            self.e[worse] = 0.5 * (self.e[worse] + old[worse])
            merit[better] = reached[good]
            terms = self._terms(better)
            step = terms.scores_and_squares(b)[0] - self.e[better]
            decrement = np.einsum("ti,ti->t", step @ self.C, self.score[better] - self.e[better])
            going = decrement > self.tol
            moving = better[going]
            if len(better) == m and not going.any():
                self.K = terms.K
                return moving
            self.K[better[~going]] = terms.K[~going]
            old[moving] = self.e[moving]
            self.e[moving] += step[going]
            active = np.sort(np.concatenate([worse, moving]))
            if not len(active):
                return active
        self.e[active] = old[active]  # the last that was not worse
        self._evaluate(active, b)
        return active

    def _evaluate(self, tasks: np.ndarray, b: np.ndarray) -> None:
        """Compute the working sums of some of the tasks at e."""
        part = self.part
        rows: Any = slice(None)
        if len(tasks) < len(self.e):
            counts = np.diff(part.starts)[tasks]
            starts = np.append(0, np.cumsum(counts))
            rows = np.repeat(part.starts[tasks] - starts[:-1], counts) + np.arange(starts[-1])
            part = StandardRows(
                part.Z[rows], part.y[rows], part.weight[rows], part.offset[rows], starts, 0
            )
        m, p = len(tasks), len(b)
        if not m:
            return
        v = b + self.e[tasks] @ self.C
        eta = np.empty(len(part.y))
        row_products(part.Z, part.starts, v, 0, m, eta)
        eta += part.offset
        derivatives = self.family.derivatives(part.y, eta)
        weighted = [part.weight * each for each in derivatives]
        for held, each in zip(self.derivatives, weighted, strict=True):
            held[rows] = each
        self.eta[rows] = eta
        packed, score = np.empty((m, self.packed.shape[1])), np.empty((m, p))
        weighted_products(part.Z, part.starts, weighted[2], 0, m, packed, p)
        weighted_sums(part.Z, part.starts, weighted[1], 0, m, score)
        self.packed[tasks], self.score[tasks], self.v[tasks] = packed, score, v
        self.value[tasks] = part.sum_by_task(weighted[0])

    def _terms(self, tasks: np.ndarray):  # type: ignore[no-untyped-def]
        statistics = WorkingStatistics(
            self.packed[tasks], self.score[tasks], self.v[tasks], self.v[:0], self.value[tasks],
            self.value[tasks], False,
        )  # fmt: skip
        return WorkingTerms(statistics, max(len(tasks), 1)).at(0, self.covariance)

    def covariances(self, b_covariance: np.ndarray | None) -> np.ndarray:
        """V_t (m, p, p): of the effects, and of b if it is integrated out."""
        CK = self.C @ self.K
        rest = np.eye(len(self.C)) - CK
        if b_covariance is None:
            return rest @ self.C
        return rest @ (self.C + b_covariance @ rest.transpose(0, 2, 1))

    def linear_terms(self, V: np.ndarray) -> tuple[np.ndarray, tuple[float, float]]:
        """a_t (m, p), and the derivatives of the log likelihood in the log of the dispersion."""
        part, p = self.part, V.shape[1]
        leverage, a = np.empty(len(part.y)), np.empty((len(V), p))
        row_forms(part.Z, part.starts, V, 0, len(V), leverage)
        coefficients = -0.5 * self.derivatives.change * leverage
        weighted_sums(part.Z, part.starts, coefficients, 0, len(V), a)
        if not isinstance(self.family, NegativeBinomial):
            return a, (0.0, 0.0)
        along = np.empty(len(part.y))  # z'V_t a_t
        row_products(part.Z, part.starts, np.einsum("tij,tj->ti", V, a), 0, len(V), along)
        values = []
        for step in (-DISPERSION_STEP, 0.0, DISPERSION_STEP):
            family = replace(self.family, dispersion=self.family.dispersion * np.exp(step))
            d = family.derivatives(part.y, self.eta)
            values.append(
                float(part.weight @ (d.value - 0.5 * leverage * d.weight + along * d.first))
            )
        low, middle, high = values
        slope = (high - low) / (2 * DISPERSION_STEP)
        return a, (slope, (high - 2 * middle + low) / DISPERSION_STEP**2)
