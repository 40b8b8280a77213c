"""Properties of every estimator and solver.

Tables are drawn at random and changed in a way whose effect on the fit is known: features are
rotated, tasks renamed, rows written twice, responses shifted, and so on. Every estimator and solver
is fitted to both tables, and the fits must agree within a tolerance that follows from the precision
of numbers, the conditioning of the table and the rule by which the fit stops. An estimator that
legitimately depends on a change is left out of that check; `benchmarks/trust/properties.py` gives
the reason. The last four checks are about the sums over rows from which fits are computed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import hypothesis
import numpy as np
from hypothesis import strategies as st
from scipy.linalg import eigh
from sklearn.exceptions import ConvergenceWarning

import sharedspan as ss
from benchmarks.trust.page import Line

EPS = np.finfo(float).eps
RANK = 2
# Maximum likelihood ends when a step gains so little; if gains shrink by a hundredth at each step,
# all further ones together are a hundred times that.
LAST_GAIN, SLOWEST = 1e-10, 0.01
ALONE = 0.3  # curvature of a minimum beside which no others were seen
SHARPEST = 0.02  # curvature of the least certain direction below which a minimum is no sharp one


# ---- tables --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Rows of several tasks, and points at which fits are compared."""

    X: np.ndarray  # (rows, d)
    y: np.ndarray  # (rows,)
    task: np.ndarray  # (rows,)
    weight: np.ndarray | None = None
    at: Any = None  # (points, d) features of the points
    of: Any = None  # (points,) their tasks
    k: int = RANK

    @cached_property
    def labels(self) -> np.ndarray:
        """The tasks, in order."""
        return np.unique(self.task)

    @cached_property
    def size(self) -> float:
        """The deviation of the responses within tasks."""
        return float(np.sqrt(np.mean((self.y - self.means(self.y)) ** 2)))

    @cached_property
    def counts(self) -> np.ndarray:
        """Weights of the rows."""
        return np.ones(len(self.y)) if self.weight is None else self.weight

    def means(self, values: np.ndarray) -> np.ndarray:
        """The mean of each row's task."""
        out = np.empty_like(values)
        for label in self.labels:
            rows = self.task == label
            out[rows] = np.average(values[rows], axis=0, weights=self.counts[rows])
        return out

    @cached_property
    def whitened(self) -> np.ndarray:
        """Features less the means of their tasks, with the identity as pooled covariance."""
        Z = self.X - self.means(self.X)
        Z = Z / np.maximum(np.sqrt(np.average(Z**2, axis=0, weights=self.counts)), 1e-300)
        covariance = (Z * self.counts[:, None]).T @ Z / self.counts.sum()
        values, axes = np.linalg.eigh(covariance)
        keep = values > 1e-10 * values[-1]
        return Z @ (axes[:, keep] / np.sqrt(values[keep]))

    @cached_property
    def condition(self) -> float:
        """The largest condition number of a task's or the pooled standardised features."""
        Z = self.X - self.means(self.X)
        varies = np.abs(Z).max(axis=0) > 1e-12 * np.abs(self.X).max(axis=0)
        Z = Z[:, varies] / Z[:, varies].std(axis=0)
        blocks = [Z, *(Z[self.task == label] for label in self.labels)]
        singular = [np.linalg.svd(block, compute_uv=False) for block in blocks]
        return max(s[0] / s[s > 1e-9 * s[0]][-1] for s in singular)

    @cached_property
    def level(self) -> float:
        """How much larger values are than they vary: digits that are lost before any sum."""
        values = np.column_stack([self.X, self.y])
        deviation = np.sqrt(np.mean((values - self.means(values)) ** 2, axis=0))
        reach = np.abs(values).max(axis=0)
        return float(np.max(reach[deviation > 0] / deviation[deviation > 0], initial=1.0))

    @cached_property
    def rounding(self) -> float:
        """What the sums of the rows leave of the digits of fitted values, over ``size``.

        Sums of N rounded terms have an error of N eps, solutions of normal equations one that is
        the square of the condition number times larger, and a level costs its own digits.
        """
        return EPS * self.X.size * self.condition**2 * self.level

    def separate(self) -> np.ndarray:
        """Least squares of each task in whitened features, (d', T)."""
        Z, y = self.whitened, self.y - self.means(self.y)
        root = np.sqrt(self.counts)
        return np.column_stack(
            [
                np.linalg.lstsq((root[:, None] * Z)[rows], (root * y)[rows], rcond=1e-10)[0]
                for rows in (self.task == label for label in self.labels)
            ]
        )

    @cached_property
    def sizes(self) -> np.ndarray:
        """Rows of each task."""
        return np.array([self.counts[self.task == label].sum() for label in self.labels])

    def sharpness(self, V: np.ndarray, k: int) -> float:
        """The least curvature of the loss along the rank-k matrices around V (d', T).

        The curvature of a task's own loss is near one in whitened features. Moves of V are
        dB W + B dW with dB orthogonal to B, measured by their own lengths.
        """
        Z, y, n = self.whitened, self.y - self.means(self.y), self.sizes
        r = np.sqrt(n / n.mean())
        B, s, Q = np.linalg.svd(V * r, full_matrices=True)
        B, free, W = B[:, :k], B[:, k:], s[:k, None] * Q[:k]
        d, T = V.shape
        grams, residual = [], np.empty((d, T))
        for t, label in enumerate(self.labels):
            rows = self.task == label
            wZ = self.counts[rows, None] * Z[rows]
            grams.append(wZ.T @ Z[rows] / n[t])
            residual[:, t] = grams[t] @ (B @ W[:, t]) - r[t] * wZ.T @ y[rows] / n[t]
        m = (d - k) * k
        H, M = np.zeros((2, m + k * T, m + k * T))
        for t in range(T):
            own = slice(m + k * t, m + k * (t + 1))
            J = np.zeros((d, m + k * T))
            J[:, :m] = np.kron(free, W[:, t])
            J[:, own] = B
            H += J.T @ grams[t] @ J
            M += J.T @ J
            if m:  # the second derivative of V itself
                bend = np.kron(free.T @ residual[:, t], np.eye(k)).reshape(m, k)
                H[:m, own] += bend
                H[own, :m] += bend.T
        return float(eigh(H, M, eigvals_only=True)[0])

    @cached_property
    def sharpest(self) -> float:
        """The sharpness of the minimum that the separate fits lead to; zero if there is none."""
        V, r = self.separate(), np.sqrt(self.sizes / self.sizes.mean())
        k = min(self.k, *V.shape)
        Z, y, root = self.whitened, self.y - self.means(self.y), np.sqrt(self.counts)
        B = np.linalg.svd(V * r, full_matrices=False)[0][:, :k]
        d, T = V.shape
        for _ in range(300):
            W = np.zeros((k, T))
            for t, label in enumerate(self.labels):
                rows = self.task == label
                F = root[rows, None] * (Z[rows] @ B)
                W[:, t] = np.linalg.lstsq(F, root[rows] * y[rows], rcond=None)[0]
            owner = np.searchsorted(self.labels, self.task)
            design = np.einsum("i,ij,ik->ijk", root, Z, W.T[owner]).reshape(len(y), d * k)
            new = np.linalg.lstsq(design, root * y, rcond=None)[0].reshape(d, k)
            new = np.linalg.qr(new)[0]
            change = np.linalg.norm(new - B @ (B.T @ new))
            B = new
            if change < 1e-12:
                break
        try:
            return max(self.sharpness(B @ W, k), 0.0)
        except np.linalg.LinAlgError:
            return 0.0


@st.composite
def tables(draw: Any, least_rows: int = 3) -> Table:
    """Tables of tasks that share a span up to small deviations, features in any position."""
    d, T = draw(st.integers(3, 5), label="d"), draw(st.integers(4, 8), label="T")
    noise = draw(st.sampled_from([0.05, 0.3, 1.0]), label="noise")
    apart = draw(st.sampled_from([0.0, 0.1, 0.5]), label="deviations from the span")
    level = draw(st.sampled_from([0.0, 1.0, 30.0]), label="level of the features")
    rng = np.random.default_rng(draw(st.integers(0, 2**31 - 1), label="seed"))
    n = rng.integers(d + least_rows, 4 * d + least_rows, T)
    task = np.repeat(np.arange(T), n)
    mix = np.linalg.qr(rng.standard_normal((d, d)))[0] * rng.uniform(0.5, 2.0, d)
    X = rng.standard_normal((n.sum(), d)) @ mix + level * rng.standard_normal(d)
    coef = rng.standard_normal((T, RANK)) @ rng.standard_normal((RANK, d))
    coef += rng.standard_normal(d) + apart * rng.standard_normal((T, d))
    y = 2.0 + rng.standard_normal(T)[task] + np.einsum("ij,ij->i", X, coef[task])
    y += noise * rng.standard_normal(len(y))
    order = rng.permutation(len(y)) if draw(st.booleans(), label="shuffled") else slice(None)
    X, y, task = X[order], y[order], task[order]
    at = X[:: max(len(X) // 20, 1)] + 0.1 * rng.standard_normal(
        (len(X[:: max(len(X) // 20, 1)]), d)
    )
    return Table(X, y, task, at=at, of=rng.choice(T, len(at)))


# ---- models --------------------------------------------------------------------------------------

# How far two fits may differ, over the deviation of the responses, given the fit and its table.
Tolerance = Callable[[Any, Table], float]


def closed_form(model: Any, table: Table) -> float:
    """Fits by formulas have the rounding of the sums they are made of."""
    return table.rounding


def chosen_penalty(model: Any, table: Table) -> float:
    """Penalties whose deviances differ by 1e-9 count as equal: fits differ by the root of that."""
    return table.rounding + math.sqrt(2e-9)


def eigenvectors(model: Any, table: Table) -> float:
    """Spans of eigenvectors move by the rounding over the gap of their eigenvalues."""
    Z, y = table.whitened, table.y - table.means(table.y)
    variant = getattr(model, "variant", "")
    if variant == "":
        s = np.linalg.svd(table.separate() * np.sqrt(table.sizes), compute_uv=False) ** 2
    elif variant == "tripuraneni":
        s = np.linalg.eigvalsh(Z.T @ ((table.counts * y**2)[:, None] * Z))[::-1]
    else:
        total = np.zeros((Z.shape[1], Z.shape[1]))
        for label, n in zip(table.labels, table.sizes, strict=True):
            rows = table.task == label
            products, w = Z[rows] * y[rows, None], table.counts[rows, None]
            c = (w * products).sum(axis=0)
            total += (np.outer(c, c) - (w * products).T @ products) / (n - 1)
        s = np.linalg.eigvalsh(total)[::-1]
    k = min(table.k, len(s))
    if k == len(s):
        return table.rounding
    gap = (s[k - 1] - s[k]) / np.abs(s).max()
    hypothesis.assume(gap > 1e-3)
    return table.rounding / gap


def tangent_gradient(model: Any, table: Table) -> float:
    """A fit whose gradient is tol |V| is that over the curvature away from the minimum."""
    hypothesis.assume(table.sharpest > SHARPEST)
    if not vars(model).get("converged_", True):
        hypothesis.assume(False)
    fitted = np.linalg.norm(table.separate() * np.sqrt(table.sizes / table.sizes.mean()))
    # One point may have the whole difference: its features are far from the mean.
    away = np.linalg.norm(table.whitened, axis=1).max() * math.sqrt(
        table.sizes.max() / table.sizes.min()
    )
    tol = getattr(model, "tol", 1e-7)
    return 2 * tol * fitted * away / table.sharpest / table.size + table.rounding / table.sharpest


def random_start(model: Any, table: Table) -> float:
    """Random starts may end in another minimum, unless the one that is near is sharp."""
    hypothesis.assume(table.sharpest > ALONE)
    return tangent_gradient(model, table)


def falling_objective(model: Any, table: Table) -> float:
    """Steps that gain a share tol of the objective: their lengths are the roots of such gains."""
    hypothesis.assume(table.sharpest > SHARPEST)
    if not vars(model).get("converged_", True):
        hypothesis.assume(False)
    away = np.linalg.norm(table.whitened, axis=1).max()
    gains = 2 * 3 * model.tol * model.trace_["objective"][-1]
    return away * math.sqrt(gains / table.sharpest) / table.size + table.rounding / table.sharpest


def log_likelihood(gain: float) -> Tolerance:
    """Parameters whose log likelihood is a gain below the best are its root standard errors off."""

    def tolerance(model: Any, table: Table) -> float:
        std = np.sqrt(np.max(model.noise_variance_)) if hasattr(model, "noise_variance_") else 1.0
        return math.sqrt(2 * gain) * std / table.size + table.rounding

    return tolerance


class Model(NamedTuple):
    """An estimator with its parameters, and how exactly it is determined by its table."""

    make: Callable[[], Any]
    tolerance: Tolerance
    kind: str  # "span", "penalised", "least squares", "ridge", "folds", "mixed" or "likelihood"
    cost: int = 1  # a fit of cost c is tried in a c-th of the cases


def span(rank: Any = RANK, **options: Any) -> Callable[[], Any]:
    return lambda: ss.SharedSpanRegressor(rank, **{"tol": 1e-10, "random_state": 0, **options})


def near_span(name: str, **options: Any) -> Callable[[], Any]:
    options = {"tol": 1e-12, "max_iter": 20_000, "random_state": 0, **options}
    return lambda: getattr(ss, name)(RANK, **options)


def adaptive(**options: Any) -> Callable[[], Any]:
    return lambda: ss.AdaptiveSpanRegressor(**options)


GIVEN: dict[str, Any] = {"rank": 1, "slopes": "diagonal", "noise": "shared", "outliers": False}
LEVELS = {label: 1 + label % 2 for label in range(100)}
MODELS = {
    "SharedSpan": Model(span(), tangent_gradient, "span"),
    "SharedSpan, noise per task": Model(span(noise="per_task"), tangent_gradient, "span", 2),
    "SharedSpan, not whitened": Model(span(whiten=False), tangent_gradient, "span", 2),
    "SharedSpan, rank by evidence": Model(span("evidence"), tangent_gradient, "folds", 2),
    "SharedSpan, rank by folds": Model(span("auto"), tangent_gradient, "folds", 3),
    "Moment, duchi": Model(lambda: ss.MomentRegressor(RANK), eigenvectors, "span"),
    "Moment, tripuraneni": Model(
        lambda: ss.MomentRegressor(RANK, variant="tripuraneni"), eigenvectors, "span"
    ),
    "Moment, niu": Model(
        lambda: ss.MomentRegressor(RANK, variant="niu", random_state=0), closed_form, "folds"
    ),
    "Spectral": Model(lambda: ss.SpectralRegressor(RANK), eigenvectors, "span"),
    "ARMUL": Model(near_span("ARMULRegressor", penalty=1.0), falling_objective, "penalised", 4),
    "ARMUL, gram": Model(
        near_span("ARMULRegressor", penalty=1.0, penalty_norm="gram"),
        falling_objective, "penalised", 5,
    ),
    "ARMUL, penalty by folds": Model(near_span("ARMULRegressor"), falling_objective, "folds", 20),
    "PenalizedERM": Model(near_span("PenalizedERMRegressor"), falling_objective, "penalised", 10),
    "Curriculum, weighted": Model(
        lambda: ss.CurriculumRegressor(RANK, variant="weighted", levels=LEVELS, random_state=0),
        random_start, "span", 5,
    ),
    "Pooled": Model(ss.PooledRegressor, chosen_penalty, "ridge"),
    "Pooled, least squares": Model(
        lambda: ss.PooledRegressor(alpha=0.0), closed_form, "least squares"
    ),
    "PerTask": Model(ss.PerTaskRegressor, chosen_penalty, "ridge"),
    "PerTask, least squares": Model(
        lambda: ss.PerTaskRegressor(alpha=0.0), closed_form, "least squares"
    ),
    "NewTask": Model(ss.NewTaskRegressor, closed_form, "least squares"),
    "Adaptive": Model(adaptive(), log_likelihood(1e-3), "folds", 15),
    "Adaptive, structure given": Model(adaptive(**GIVEN), log_likelihood(1e-3), "mixed", 4),
    "Adaptive, maximum likelihood": Model(
        adaptive(slopes="full", method="ml"), log_likelihood(LAST_GAIN / SLOWEST), "likelihood", 4
    ),
    "Adaptive, REML": Model(
        adaptive(slopes="full", method="reml"), log_likelihood(LAST_GAIN / SLOWEST), "likelihood", 4
    ),
    "Adaptive, Student's t": Model(
        adaptive(rank=1, slopes="diagonal", family="student_t"), log_likelihood(1e-3), "mixed", 15
    ),
    "Adaptive, Huber": Model(
        adaptive(rank=1, slopes="diagonal", family="huber"), log_likelihood(1e-3), "mixed", 15
    ),
}  # fmt: skip
SPANS = ("span", "penalised")
EXACT = ("least squares", "likelihood")


# ---- changes of a table --------------------------------------------------------------------------


class Change(NamedTuple):
    """A changed table, and how the predictions at its points become those of the first table."""

    table: Table
    back: Callable[[np.ndarray], np.ndarray]
    unit: float = 1.0  # of the responses
    before: Table | None = None  # the table to compare with, if it is not the one that was drawn


def same(predictions: np.ndarray) -> np.ndarray:
    return predictions


def features(table: Table, function: Callable[[np.ndarray], np.ndarray]) -> Change:
    """The table with a function of its features."""
    return Change(replace(table, X=function(table.X), at=function(table.at)), same)


def rotated(table: Table, rng: np.random.Generator) -> Change:
    d = table.X.shape[1]
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return features(table, lambda X: X @ Q)


def mixed(table: Table, rng: np.random.Generator) -> Change:
    d = table.X.shape[1]
    U, V = (np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(2))
    A = U * np.geomspace(1.0, 20.0, d) @ V
    return features(table, lambda X: X @ A)


def permuted(table: Table, rng: np.random.Generator) -> Change:
    order = rng.permutation(table.X.shape[1])
    return features(table, lambda X: X[:, order])


def rescaled(table: Table, rng: np.random.Generator) -> Change:
    scale = 10 ** rng.uniform(-4, 4, table.X.shape[1])
    return features(table, lambda X: X * scale)


def turned(table: Table, rng: np.random.Generator) -> Change:
    sign = rng.choice([-1.0, 1.0], table.X.shape[1])
    return features(table, lambda X: X * sign)


def moved(table: Table, rng: np.random.Generator) -> Change:
    by = 10 * rng.standard_normal(table.X.shape[1])
    return features(table, lambda X: X + by)


def with_constant(table: Table, rng: np.random.Generator) -> Change:
    level, place = rng.choice([0.0, 0.3, -1e6]), rng.integers(table.X.shape[1] + 1)
    return features(table, lambda X: np.insert(X, place, level, axis=1))


def with_redundant(table: Table, rng: np.random.Generator) -> Change:
    b = rng.standard_normal(table.X.shape[1])
    return features(table, lambda X: np.column_stack([X, X @ b]))


def with_useless(table: Table, rng: np.random.Generator) -> Change:
    """A column that is orthogonal to the others and to y within each task: nothing to explain."""
    column = np.empty(len(table.y))
    for label in table.labels:
        rows = table.task == label
        others = np.column_stack([np.ones(rows.sum()), table.X[rows], table.y[rows]])
        draw = rng.standard_normal(rows.sum())
        column[rows] = draw - others @ np.linalg.lstsq(others, draw, rcond=None)[0]
    X = np.column_stack([table.X, column])
    at = np.column_stack([table.at, rng.standard_normal(len(table.at))])
    return Change(replace(table, X=X, at=at), same)


def moved_by_task(table: Table, rng: np.random.Generator) -> Change:
    by = 3 * rng.standard_normal((len(table.labels), table.X.shape[1]))
    return Change(replace(table, X=table.X + by[table.task], at=table.at + by[table.of]), same)


def renamed(table: Table, rng: np.random.Generator) -> Change:
    name = rng.permutation(len(table.labels))
    if len(name) > 2 and isinstance(rng, np.random.Generator):
        name = 2 * name  # the parity of a label is its level in a curriculum
        name = name + table.labels % 2
    return Change(replace(table, task=name[table.task], of=name[table.of]), same)


def shuffled(table: Table, rng: np.random.Generator) -> Change:
    order = rng.permutation(len(table.y))
    return Change(replace(table, X=table.X[order], y=table.y[order], task=table.task[order]), same)


def repeated(table: Table, rng: np.random.Generator) -> Change:
    times = rng.choice([1, 1, 2, 3], len(table.y))
    weighted = replace(table, weight=times.astype(float))
    written = {name: getattr(table, name).repeat(times, axis=0) for name in ("X", "y", "task")}
    return Change(replace(table, **written), same, before=weighted)


def reweighted(table: Table, rng: np.random.Generator) -> Change:
    weight = rng.uniform(0.5, 2.0, len(table.y))
    before = replace(table, weight=weight)
    return Change(replace(table, weight=10 ** rng.uniform(-3, 3) * weight), same, before=before)


def with_left_out(table: Table, rng: np.random.Generator) -> Change:
    rows = rng.integers(len(table.y), size=3)
    return Change(
        replace(
            table,
            X=np.vstack([table.X, 1e3 * table.X[rows] + 1]),
            y=np.append(table.y, table.y[rows] - 1e3),
            task=np.append(table.task, table.task[rows]),
            weight=np.append(np.ones(len(table.y)), np.zeros(3)),
        ),
        same,
    )


def with_y_moved(table: Table, rng: np.random.Generator) -> Change:
    by = 100 * rng.standard_normal()
    return Change(replace(table, y=table.y + by), lambda p: p - by)


def with_y_moved_by_task(table: Table, rng: np.random.Generator) -> Change:
    by = 10 * rng.standard_normal(len(table.labels))
    return Change(replace(table, y=table.y + by[table.task]), lambda p: p - by[table.of])


def with_slope_added(table: Table, rng: np.random.Generator) -> Change:
    b = rng.standard_normal(table.X.shape[1])
    return Change(replace(table, y=table.y + table.X @ b), lambda p: p - table.at @ b)


def with_y_scaled(table: Table, rng: np.random.Generator) -> Change:
    unit = 10 ** rng.uniform(-4, 4)
    return Change(replace(table, y=unit * table.y), lambda p: p / unit, unit)


def with_y_negated(table: Table, rng: np.random.Generator) -> Change:
    return Change(replace(table, y=-table.y), lambda p: -p)


def with_all_tasks_twice(table: Table, rng: np.random.Generator) -> Change:
    X, y = np.tile(table.X, (2, 1)), np.tile(table.y, 2)
    task = np.append(table.task, table.task + 2 * len(table.labels) + len(table.labels) % 2)
    return Change(replace(table, X=X, y=y, task=task), same)


def with_a_twin(table: Table, rng: np.random.Generator) -> Change:
    """One task is there twice, and both are compared."""
    label = int(rng.choice(table.labels))
    rows, twin = table.task == label, 50 + label % 2
    before = replace(
        table,
        X=np.vstack([table.X, table.X[rows]]),
        y=np.append(table.y, table.y[rows]),
        task=np.append(table.task, np.full(rows.sum(), twin)),
        of=np.full(len(table.at), label),
    )
    return Change(replace(before, of=np.full(len(table.at), twin)), same, before=before)


def unchanged(table: Table, rng: np.random.Generator) -> Change:
    return Change(table, same)


class Property(NamedTuple):
    """What a change must not change, and the estimators that legitimately depend on it.

    The predictions must not, nor the noise, unless its degrees of freedom are others.
    """

    claim: str
    change: Callable[[Table, np.random.Generator], Change]
    left_out: dict[str, str]  # kinds or names of models, with the reason
    fit: Callable[[Model, Table, np.random.Generator], Any] | None = None  # of the changed table
    noise: bool = True  # whether the noise is the same too


FOLDS = "its folds, or its halves, are drawn by the values of the rows"
ORDER = "its folds go by the order of tasks, or of responses"
AXES = "its variances, or its penalty, are those of single features"
LEVEL = "intercepts are drawn from a population, not free"
SLOPE = "coefficients are shrunk towards zero, or lie in a span through zero"
UNITS = "without whitening its iterations converge as slowly as the features are ill-conditioned"
COUNTS = "priors, penalties, noise and ranks go by numbers of rows and tasks"
PENALTY = "the published penalty is in the units of y, and the loss in their squares"
WIDTH = "penalties and priors count the features"
MINIMA = "without whitening the moments are a poor start, and there are several minima"
ROWS = "without rows it selects by evidence alone"

BY_VALUES = ("SharedSpan, rank by folds", "ARMUL, penalty by folds", "Moment, niu")
by_values = dict.fromkeys(BY_VALUES, FOLDS)
by_order = {**dict.fromkeys(BY_VALUES[:2], ORDER), "Adaptive": ORDER}
by_axes = {**by_values, "ridge": AXES, "mixed": AXES, "Adaptive": AXES}
PROPERTIES = {
    "rotation": Property("Rotating the features", rotated, by_axes),
    "mixing": Property(
        "Mixing the features by any invertible matrix", mixed,
        {**by_axes, "SharedSpan, not whitened": UNITS},
    ),
    "feature order": Property("Permuting the features", permuted, by_values),
    "feature units": Property(
        "Rescaling the features, each by its own factor", rescaled,
        {**by_values, "SharedSpan, not whitened": UNITS},
    ),
    "feature signs": Property("Changing the signs of features", turned, by_values),
    "feature origin": Property("Shifting the features", moved, by_values),
    "feature origin by task": Property(
        "Shifting the features of each task by its own amounts", moved_by_task,
        {**by_values, "Adaptive": LEVEL, "mixed": LEVEL, "likelihood": LEVEL},
    ),
    "task order": Property("Renaming the tasks, so that their order changes", renamed, by_order),
    "row order": Property("Permuting the rows", shuffled, {}),
    "repetition": Property(
        "Repeating rows two or three times, compared with weights of two or three", repeated, {}
    ),
    "weight zero": Property(
        "Adding rows of weight zero with absurd values", with_left_out, {}
    ),
    "weight unit": Property(
        "Multiplying all weights by a factor", reweighted,
        {"mixed": COUNTS, "likelihood": COUNTS, "ridge": COUNTS, "penalised": COUNTS,
         "folds": COUNTS, "Spectral": COUNTS, "Moment, duchi": COUNTS,
         "SharedSpan, noise per task": COUNTS, "Curriculum, weighted": COUNTS},
        noise=False,
    ),
    "y origin": Property("Shifting y", with_y_moved, by_values),
    "y origin by task": Property(
        "Shifting y of each task by its own amount", with_y_moved_by_task,
        {**by_values, "Adaptive": LEVEL, "mixed": LEVEL, "likelihood": LEVEL},
    ),
    "slope added": Property(
        "Adding a linear function of the features to y", with_slope_added,
        {"span": SLOPE, "penalised": SLOPE, "ridge": SLOPE, "mixed": SLOPE, "folds": SLOPE},
    ),
    "y unit": Property(
        "Multiplying y by a factor, which must multiply the noise too", with_y_scaled,
        {**by_values, "PenalizedERM": PENALTY},
    ),
    "y sign": Property("Changing the sign of y", with_y_negated, {**by_values, "Adaptive": ORDER}),
    "constant feature": Property(
        "Adding a constant feature", with_constant,
        {**by_values, "SharedSpan, not whitened": WIDTH},
    ),
    "redundant feature": Property(
        "Adding a feature that is a linear combination of the others", with_redundant,
        {**by_axes, "likelihood": AXES, "SharedSpan, not whitened": UNITS},
    ),
    "useless feature": Property(
        "Adding a feature that explains nothing in any task", with_useless,
        {"ridge": WIDTH, "mixed": WIDTH, "likelihood": WIDTH, "penalised": WIDTH, "folds": WIDTH,
         "Spectral": WIDTH, "Moment, duchi": WIDTH, "Moment, tripuraneni": WIDTH,
         "SharedSpan, noise per task": WIDTH, "Curriculum, weighted": WIDTH},
        noise=False,
    ),
    "all tasks twice": Property(
        "Adding an exact copy of every task", with_all_tasks_twice,
        {"mixed": COUNTS, "likelihood": COUNTS, "penalised": COUNTS, "folds": COUNTS,
         "Spectral": COUNTS, "SharedSpan, noise per task": COUNTS, "Pooled": COUNTS,
         "Curriculum, weighted": COUNTS},
        noise=False,
    ),
    "twin": Property(
        "A task that is an exact copy of another one gets the same coefficients", with_a_twin,
        {"SharedSpan, rank by folds": ORDER, "ARMUL, penalty by folds": ORDER,
         "Moment, niu": ORDER},
        noise=False,
    ),
}  # fmt: skip


# ---- rows that come in parts ---------------------------------------------------------------------


def rows_of(table: Table, rows: np.ndarray) -> tuple[Any, ...]:
    weight = None if table.weight is None else table.weight[rows]
    return table.X[rows], table.y[rows], table.task[rows], weight


def fit(model: Model, table: Table) -> Any:
    """The estimator, fitted without the warnings of few rows and slow convergence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.make().fit(*rows_of(table, np.arange(len(table.y))))


def in_chunks(model: Model, table: Table, rng: np.random.Generator) -> Any:
    """The rows of every task over up to five chunks, in any order."""
    fitted, part = model.make(), rng.integers(rng.integers(2, 6), size=len(table.y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first chunks have few rows
        for i in np.unique(part):
            fitted.partial_fit(*rows_of(table, np.flatnonzero(part == i)))
    return fitted


def merged(model: Model, table: Table, rng: np.random.Generator) -> Any:
    """Two or three sites, with rows of the same tasks and of their own ones."""
    part = rng.integers(rng.integers(2, 4), size=len(table.y))
    part[table.task == table.labels[0]] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sites = [fit(model, replace(table, X=X, y=y, task=task)) for X, y, task, _ in
                 (rows_of(table, np.flatnonzero(part == i)) for i in np.unique(part))]  # fmt: skip
        return sites[0].merge(*sites[1:])


PROPERTIES |= {
    "chunks": Property(
        "Splitting the rows of every task over chunks (`partial_fit`)", unchanged,
        {"SharedSpan, rank by folds": ROWS, "ARMUL, penalty by folds": ROWS, "Adaptive": ROWS,
         "SharedSpan, not whitened": MINIMA},
        in_chunks,
    ),
    "sites": Property(
        "Splitting the rows over sites that share only their sums (`merge`)", unchanged,
        {"SharedSpan, rank by folds": ROWS, "ARMUL, penalty by folds": ROWS, "Adaptive": ROWS,
         "SharedSpan, not whitened": MINIMA},
        merged,
    ),
}  # fmt: skip


# ---- comparing two fits --------------------------------------------------------------------------


class Comparison(NamedTuple):
    """The largest difference of two fits, and what it may be."""

    difference: float
    tolerance: float


def predictions(fitted: Any, table: Table) -> np.ndarray:
    task = table.of if np.isin(table.of, fitted.tasks_).all() else fitted.tasks_[table.of]
    return fitted.predict(table.at, task)


def compare(name: str, model: Model, table: Table, seed: int) -> Comparison:
    """Fit a table and a changed one, and compare predictions and the noise."""
    rule, rng = PROPERTIES[name], np.random.default_rng(seed)
    change = rule.change(table, rng)
    before, after = change.before or table, change.table
    if rule.fit:  # a refit starts from the last one, whose minimum may be another
        hypothesis.assume(table.sharpest > ALONE)
    first = fit(model, before)
    second = (rule.fit or (lambda model, table, rng: fit(model, table)))(model, after, rng)
    expected, found = predictions(first, before), change.back(predictions(second, after))
    tolerance = model.tolerance(first, before) + model.tolerance(second, after)
    size = before.size
    difference = float(np.abs(found - expected).max()) / size
    reach = np.abs(expected).max() + np.abs(predictions(second, after)).max() / change.unit
    # Points are as far from the mean as rows are; a level that is taken off takes its digits.
    tolerance *= max(1.0, np.abs(before.whitened).max())
    tolerance += EPS * len(before.y) * float(reach) / size
    if hasattr(first, "noise_variance_") and rule.noise:
        noise = [np.sqrt(np.mean(m.noise_variance_)) for m in (first, second)]
        gap = abs(noise[1] / change.unit - noise[0]) / size
        # Residuals are as far apart as fitted values, and spare rows are at least one.
        difference = max(difference, float(gap) / math.sqrt(len(before.y)))
    return Comparison(difference, tolerance)


# ---- families of responses -----------------------------------------------------------------------


def family(name: str, **options: Any) -> Callable[[], Any]:
    return adaptive(family=name, rank=1, slopes="diagonal", **options)


def classifier(name: str, **options: Any) -> Callable[[], Any]:
    return lambda: getattr(ss, name)(rank=1, **options)


FAMILIES = {
    "binomial": Model(family("binomial"), log_likelihood(1e-3), "classes"),
    "probit": Model(family("probit"), log_likelihood(1e-3), "classes"),
    "poisson": Model(family("poisson"), log_likelihood(1e-3), "counts"),
    "negative_binomial": Model(family("negative_binomial"), log_likelihood(1e-3), "counts"),
    "AdaptiveSpanClassifier": Model(
        classifier("AdaptiveSpanClassifier", slopes="diagonal"), log_likelihood(1e-3), "classes"
    ),
    "SharedSpanClassifier": Model(
        classifier("SharedSpanClassifier"), log_likelihood(1e-3), "classes"
    ),
}
FAMILY_PROPERTIES = (
    "feature order", "feature units", "feature signs", "feature origin", "task order", "row order",
    "repetition", "weight zero", "constant feature", "twin",
)  # fmt: skip


@st.composite
def family_tables(draw: Any, kind: str) -> Table:
    """The same tables with classes or counts as responses."""
    table = draw(tables(least_rows=12))
    rng = np.random.default_rng(draw(st.integers(0, 2**31 - 1), label="responses"))
    eta = (table.y - table.y.mean()) / table.y.std()
    y = (
        rng.random(len(eta)) < 1 / (1 + np.exp(-eta))
        if kind == "classes"
        else rng.poisson(np.exp(eta))
    )
    hypothesis.assume(len(np.unique(y)) > 1)
    return replace(table, y=y.astype(float))


def linear_predictors(fitted: Any, table: Table) -> np.ndarray:
    """Linear predictors of the points, by the coefficients of their tasks."""
    of = np.searchsorted(fitted.tasks_, table.of)
    return fitted.intercept_[of] + np.einsum("ij,ij->i", table.at, fitted.coef_[of])


def compare_families(name: str, model: Model, table: Table, seed: int) -> Comparison:
    """Fit a table of classes or counts and a changed one, and compare linear predictors."""
    change = PROPERTIES[name].change(table, np.random.default_rng(seed))
    before, after = change.before or table, change.table
    first, second = fit(model, before), fit(model, after)
    return of_predictors(
        linear_predictors(first, before), linear_predictors(second, after), first, before
    )


def of_predictors(a: np.ndarray, b: np.ndarray, first: Any, table: Table) -> Comparison:
    """Differences over standard errors, whose square is twice the log likelihood that is lost."""
    of = np.searchsorted(first.tasks_, table.of)
    posterior = first._uncertainty_
    _, variance = posterior.linear_predictor(table.at, of)
    return Comparison(
        float(np.max(np.abs(a - b) / np.sqrt(variance))), math.sqrt(2 * 1e-3) * FITTED_TURNS
    )


FITTED_TURNS = 2  # of two fits, each that far from the best


def swapped_classes(model: Model, table: Table, seed: int) -> Comparison:
    first, second = fit(model, table), fit(model, replace(table, y=1 - table.y))
    a, b = linear_predictors(first, table), -linear_predictors(second, table)
    return of_predictors(a, b, first, table)


def with_exposure(model: Model, table: Table, seed: int) -> Comparison:
    """A common exposure moves the mean intercept alone."""
    exposure = float(10 ** np.random.default_rng(seed).uniform(-2, 2))
    first, second = fit(model, table), model.make()
    second.fit(*rows_of(table, np.arange(len(table.y))), exposure=exposure)
    b = linear_predictors(second, table) + math.log(exposure)
    return of_predictors(linear_predictors(first, table), b, first, table)


def as_trials(model: Model, table: Table, seed: int) -> Comparison:
    """Rows of equal features as one row: the share of ones, and the trials as its weight."""
    rng = np.random.default_rng(seed)
    times = rng.integers(1, 4, len(table.y))
    ones = rng.binomial(times, 0.25 + 0.5 * table.y)
    X, task = table.X.repeat(2 * 1, axis=0), table.task.repeat(2)
    y, weight = np.tile([1.0, 0.0], len(times)), np.column_stack([ones, times - ones]).ravel()
    single = replace(table, X=X, y=y, task=task, weight=weight.astype(float))
    shares = replace(table, y=ones / times, weight=times.astype(float))
    first, second = fit(model, single), fit(model, shares)
    a, b = linear_predictors(first, table), linear_predictors(second, table)
    return of_predictors(a, b, first, table)


OF_FAMILIES: dict[str, tuple[str, tuple[str, ...], Callable[[Model, Table, int], Comparison]]] = {
    "Swapping the two classes": ("classes", tuple(
        name for name, model in FAMILIES.items() if model.kind == "classes"), swapped_classes),
    "Giving all rows the same exposure, which must change the mean intercept alone": (
        "counts", ("poisson", "negative_binomial"), with_exposure),
    "Rows of zeros and ones, compared with shares of ones that are weighted by the trials": (
        "classes", ("binomial", "probit"), as_trials),
}  # fmt: skip


# ---- solvers -------------------------------------------------------------------------------------

SOLVERS_LEFT_OUT = {
    "nsgd": "its steps are random, and it never converges",
    "phase_two": "from its small start alone it may stay near a saddle",
}
SOLVER_PROPERTIES = (
    "rotation", "mixing", "feature order", "feature units", "feature signs", "feature origin",
    "task order", "row order", "repetition", "y origin by task", "y unit", "y sign",
    "constant feature", "redundant feature", "all tasks twice",
)  # fmt: skip


def solver_model(name: str) -> Model:
    return Model(
        lambda: ss.SharedSpanRegressor(RANK, solver=name, tol=1e-9, random_state=0, max_iter=5000),
        random_start, "span",
    )  # fmt: skip


def same_minimum(model: Model, table: Table, seed: int) -> Comparison:
    """Every solver ends in the minimum of the reference."""
    first, second = fit(SOLVERS["als"], table), fit(model, table)
    tolerance = model.tolerance(first, table) + model.tolerance(second, table)
    tolerance *= max(1.0, np.abs(table.whitened).max())
    gap = np.abs(predictions(first, table) - predictions(second, table)).max() / table.size
    return Comparison(float(gap), tolerance)


SOLVERS = {name: solver_model(name) for name in ss.SOLVERS if name not in SOLVERS_LEFT_OUT}


# ---- statistics ----------------------------------------------------------------------------------


def sums(table: Table, rows: Any, units: Any, centred: bool) -> Any:
    """Sums of some rows, with all tasks."""
    from sharedspan.inputs.rows import validate_rows
    from sharedspan.statistics.grams import GramStatistics

    every = validate_rows(table.X, table.y, table.task)
    order = np.arange(len(table.y)) if every.order is None else every.order
    some = every.select(np.isin(order, rows))
    statistics = GramStatistics(every.n_tasks, every.n_features, centred)
    return statistics.update(some, units), some


def difference_of_sums(a: Any, b: Any, of: Any) -> float:
    """Differences of two sets of sums, over the sizes of their terms in the whole."""
    V = np.zeros_like(of.anchor)
    _, square = of.at_anchor(V)
    gram = np.abs(of.packed).max(axis=1)
    gaps = [np.abs(a.packed - b.packed).max(axis=1) / gram]
    ga, qa = a.at_anchor(V)
    gb, qb = b.at_anchor(V)
    gaps += [np.abs(ga - gb).max(axis=1) / np.sqrt(gram * square), np.abs(qa - qb) / square]
    return float(max(gap.max() for gap in gaps))


def statistics_case(name: str, table: Table, seed: int) -> Comparison:
    """One of the laws of sums on random parts of the rows of each task."""
    from sharedspan.inputs.rows import validate_rows
    from sharedspan.statistics.task_statistics import Units

    rng = np.random.default_rng(seed)
    centred = bool(rng.integers(2))
    rows, part = np.arange(len(table.y)), rng.integers(3, size=len(table.y))
    units = Units.plain(validate_rows(table.X, table.y, table.task), centred)
    whole, _ = sums(table, rows, units, centred)
    pieces = [sums(table, rows[part == i], units, centred) for i in range(3)]
    a, b, c = (piece for piece, _ in pieces)
    copy = lambda s: s.take(np.arange(s.n_tasks))  # noqa: E731
    if name == "merged":
        found, expected = copy(a).merge(b).merge(c), whole
    elif name == "commuted":
        found, expected = copy(c).merge(copy(a).merge(b)), copy(b).merge(copy(c).merge(a))
    elif name == "subtracted":
        found, expected = copy(whole).update(pieces[0][1], units, sign=-1.0), copy(b).merge(c)
    else:
        d = table.X.shape[1]
        P, Q = (np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(2))
        found, expected = whole.transformed(P).transformed(Q), whole.transformed(P @ Q)
        whole = expected
    # Every sum is of N terms, and what a task's level adds is subtracted again.
    tolerance = 8 * EPS * table.X.size * (1 if centred else table.level) * table.condition**2
    return Comparison(difference_of_sums(found, expected, whole), tolerance)


LAWS = {
    "merged": "Sums of three parts of the rows, merged, compared with the sums of all rows",
    "commuted": "Sums merged in another order",
    "subtracted": "Sums of one part, subtracted from those of all rows, leave those of the rest",
    "mapped": "Sums after two linear maps of the features, compared with their product as one map",
}


# ---- the run -------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A claim about one estimator, solver or law."""

    claim: str
    subject: str
    drawn: st.SearchStrategy[Table]
    compare: Callable[[Table, int], Comparison]
    cost: int


def cases() -> Iterator[Case]:
    """Everything that is claimed."""
    for name, rule in PROPERTIES.items():
        for label, model in MODELS.items():
            if {label, model.kind} & set(rule.left_out):
                continue
            needed = {"chunks": "partial_fit", "sites": "merge"}.get(name, "fit")
            if hasattr(model.make(), needed):
                check = partial(compare, name, model)
                yield Case(rule.claim, label, tables(), check, model.cost)
    for name in FAMILY_PROPERTIES:
        for label, model in FAMILIES.items():
            check = partial(compare_families, name, model)
            drawn = family_tables(model.kind)
            yield Case(PROPERTIES[name].claim, label, drawn, check, 15)
    for claim, (kind, names, function) in OF_FAMILIES.items():
        for label in names:
            check = partial(function, FAMILIES[label])
            yield Case(claim, label, family_tables(kind), check, 8)
    for label, model in SOLVERS.items():
        yield Case("Every solver, compared with alternating least squares", f"solver {label}",
                   tables(), partial(same_minimum, model), 3)  # fmt: skip
        for name in SOLVER_PROPERTIES:
            yield Case(PROPERTIES[name].claim, f"solver {label}", tables(),
                       partial(compare, name, model), 15)  # fmt: skip
    for name, claim in LAWS.items():
        yield Case(claim, "statistics", tables(), partial(statistics_case, name), 1)


class Outcome(NamedTuple):
    """What came of a case: the differences over their tolerances."""

    tried: int
    largest: float
    failure: str = ""


def examine(case: Case, count: int, seed: int) -> Outcome:
    """Draw tables until ``count`` of them fit the conditions of the claim, or none do."""
    ratios: list[float] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(case.drawn, st.integers(0, 2**31 - 1))
    def holds(table: Table, change: int) -> None:
        found = case.compare(table, change)
        ratios.append(found.difference / found.tolerance)
        assert found.difference <= found.tolerance, (
            f"{case.subject}: {case.claim} made a difference of {found.difference:.1e}, above "
            f"{found.tolerance:.1e}; seed {change}"
        )

    failure = ""
    try:
        holds()
    except hypothesis.errors.Unsatisfiable:
        pass
    except Exception as error:
        failure = f"{case.subject}: {type(error).__name__}: {error}"
    return Outcome(len(ratios), max(ratios, default=0.0), failure)


MOST = 30  # tables for each claim about a fast estimator in a run of ten minutes


def run(cases_factor: float, seed: int) -> list[Line]:
    """A line for each property, over all estimators that have it."""
    lines = []
    of_claim: dict[str, list[Case]] = {}
    for case in cases():
        of_claim.setdefault(case.claim, []).append(case)
    for claim, group in of_claim.items():
        outcomes = [
            examine(case, max(round(MOST * cases_factor / case.cost), 1), seed) for case in group
        ]
        tried = sum(outcome.tried for outcome in outcomes)
        largest = max(outcome.largest for outcome in outcomes)
        failures = [outcome.failure for outcome in outcomes if outcome.failure]
        subjects = f" of {len(group)} estimators or solvers"
        figure = (
            f"{tried:,} cases{'' if group[0].subject == 'statistics' else subjects}; "
            f"the largest difference is {largest:.2g} times its tolerance"
        )
        lines.append(Line(claim, "; ".join([figure, *failures]), not failures))
    return lines
