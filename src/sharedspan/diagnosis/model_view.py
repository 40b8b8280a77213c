"""A fitted model as the diagnosis sees it: numbers of its coefficients, and of rows if given.

Coefficients are looked at by what they predict (metric.py), so that a feature in grams weighs as
much as the same one in tons, and what cancels between collinear features counts for nothing.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharedspan.diagnosis.metric import feature_metric
from sharedspan.diagnosis.rows import TaskRows
from sharedspan.estimators.adaptive import AdaptiveSpanRegressor
from sharedspan.estimators.base import TaskRegressor
from sharedspan.estimators.baselines import PerTaskRegressor
from sharedspan.estimators.transfer import NewTaskRegressor
from sharedspan.subspace import orthonormal_basis

SPARE_ROWS = 5  # rows beyond its features that a task needs to tell what lies off the span
ROUNDING = 1e-12  # of the largest eigenvalue of a Gram
HARD = 1e-10  # share of the variation off the span that is rounding


def span_of(model: Any) -> np.ndarray | None:
    """B (d, k) of a model, or None where it has no span.

    A model of new tasks with a prior on all slopes has all features for a basis, which is none.
    """
    basis: np.ndarray | None = getattr(model, "representation_", None)
    if basis is None or (isinstance(model, NewTaskRegressor) and len(basis) == basis.shape[1]):
        return None
    return basis


class Look:
    """A model, and rows if there are any, as the diagnosis sees them."""

    def __init__(self, model: TaskRegressor, rows: TaskRows | None) -> None:
        self.model, self.rows = model, rows
        known = model.tasks_
        self.labels: list[Hashable] = list(known) if known.dtype == object else known.tolist()
        self.adaptive = isinstance(model, AdaptiveSpanRegressor)
        basis = span_of(model)
        self.rank: int | None = None if basis is None else int(model.rank_)
        self.metric = metric = feature_metric(model, rows)
        self.coef = metric.predictions(model.coef_ * metric.deviation)  # (T, d)
        centre = getattr(model, "mean_coef_", None)
        if centre is None:
            self.shift = self.coef - self.coef.mean(axis=0)
        else:
            self.shift = metric.predictions((model.coef_ - centre) * metric.deviation)
        self.basis = np.zeros((self.coef.shape[1], 0))  # (d, k)
        if basis is not None and basis.size:
            self.basis = orthonormal_basis(metric.predictions(basis.T * metric.deviation).T)
        off = self.shift - self.shift @ self.basis @ self.basis.T
        self.off_span = np.linalg.norm(off, axis=1)  # (T,)
        self.off_feature = np.abs(off).argmax(axis=1)
        # Coefficients that cannot leave the span say nothing of what lies off it.
        self.hard = bool(self.rank) and not self.adaptive
        self.hard = self.hard and np.sum(off**2) <= HARD * np.sum(self.coef**2)
        self.residuals = None if rows is None or rows.y is None else self._residual_squares()
        self.noise_squares = self.residuals
        if self.residuals is not None and isinstance(model, PerTaskRegressor):
            self.noise_squares = self._least_squares()
        self.fits = self._fits_off_span() if self.hard and self.residuals is not None else []
        self.share_by = "construction" if self.hard else "coefficients"
        self.share_by = "rows" if self.fits else self.share_by
        variance = getattr(model, "noise_variance_", None)
        self.noise: float | None = None
        if variance is not None and np.isfinite(variance).any():
            self.noise = float(np.sqrt(np.nanmedian(variance)))
        elif self.residuals is not None:
            _, squares, degrees = self.residuals
            if degrees.sum() > 0:
                self.noise = float(np.sqrt(squares.sum() / degrees.sum()))

    # Numbers

    def condition_number(self, good: np.ndarray) -> float | None:
        """s_1 / s_k within the span."""
        if not self.basis.size:
            return None
        V = (self.shift if self.adaptive else self.coef)[good]
        s = np.linalg.svd(V @ self.basis, compute_uv=False)
        if len(s) < self.basis.shape[1] or s[0] == 0:
            return None
        return float(s[0] / s[-1]) if s[-1] > 0 else float("inf")

    def span_share(self, good: np.ndarray) -> float | None:
        """Share of the variation between tasks in the span, of the tasks that fit."""
        if self.rank is None:
            return None
        fits = [fit for fit in self.fits if good[fit.task]] or self.fits
        if fits:
            noise = sum(fit.left for fit in fits) / sum(fit.spare for fit in fits)
            inside = sum(fit.inside for fit in fits) - noise * self.rank * len(fits)
            # The span itself was fitted, k (d - k) numbers, to what it explains.
            spent = self.rank * fits[0].extra * len(fits) / len(self.labels)
            outside = sum(fit.outside - noise * fit.extra for fit in fits) + noise * spent
            inside, outside = max(inside, 0.0), max(outside, 0.0)
            return inside / (inside + outside) if inside + outside > 0 else None
        total = float(np.sum(self.shift[good] ** 2))
        if total <= np.finfo(float).eps * np.sum(self.coef[good] ** 2):
            return None
        return 1 - float(np.sum(self.off_span[good] ** 2)) / total

    def signal_to_noise(self) -> float | None:
        """Variance within tasks of Xv over that of the noise."""
        assert self.rows is not None
        if not self.noise:
            return None
        variance = getattr(self.model, "noise_variance_", None)
        level = self.noise**2 if variance is None else float(np.nanmean(variance))
        centred, total = self.model.fit_intercept, 0.0
        for t, X, _ in self.rows.tasks(centred):
            total += float(np.sum((X @ self.model.coef_[t]) ** 2))
        return total / len(self.rows.X) / level

    def task_r2(self) -> dict[Hashable, float]:
        """R^2 about the mean of each task."""
        if self.residuals is None or self.rows is None:
            return {}
        found = {}
        for (t, _, y), squares in zip(self.rows.tasks(True), self.residuals[1], strict=True):
            total = float(np.sum(y**2))
            if total > 0:
                found[self.labels[t]] = 1 - float(squares) / total
        return found

    def isometry(self) -> dict[str, Any]:
        """Eigenvalues of B'S_t B after whitening by the pooled one, and the task farthest from 1.

        Along the span, whitening all features first is the same as whitening these k alone.
        """
        assert self.rows is not None
        moments, codes, sizes = self._moments()
        if not codes:
            return {}
        pooled = np.average(moments, axis=0, weights=sizes)
        values, axes = np.linalg.eigh(pooled)
        if values[0] <= 1e-12 * values[-1]:
            return {}
        root = axes / np.sqrt(values)
        eigenvalues = np.linalg.eigvalsh(root.T @ moments @ root)
        self.least = dict(zip(codes, eigenvalues[:, 0], strict=True))
        worst = np.abs(eigenvalues - 1).max(axis=1)
        at = int(worst.argmax())
        ratio = np.sqrt(self.basis.shape[1] / max(sizes[at] - self.model.fit_intercept, 1))
        return {
            "isometry": float(worst[at]),
            "isometry_task": self.labels[codes[at]],
            "isometry_by_chance": float((1 + ratio) ** 2 - 1),
        }

    least: dict[int, float]  # smallest eigenvalue of each task, once isometry was looked at

    def _moments(self) -> tuple[np.ndarray, list[int], list[int]]:
        """Second moments (T, k, k) of the features along the span, task codes and sizes."""
        assert self.rows is not None
        self.least = {}
        moments, codes, sizes = [], [], []
        user = span_of(self.model)
        if user is None or not user.size:
            return np.zeros((0, 0, 0)), [], []
        size = np.abs(user * self.metric.deviation[:, None]).max(axis=0)
        user = user / np.where(size > 0, size, 1.0)  # any basis will do: squares must exist
        for t, X, _ in self.rows.tasks(self.model.fit_intercept):
            Z = X @ user
            moments.append(Z.T @ Z / len(Z))
            codes.append(t)
            sizes.append(len(Z))
        return np.stack(moments), codes, sizes

    # Residuals

    def _residual_squares(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Codes, sums of squared residuals and about their degrees of freedom, each (T',).

        The degrees are zero where it is not known what a fit has spent of them.
        """
        assert self.rows is not None
        model, rows = self.model, self.rows
        assert rows.y is not None
        residual = rows.y - model._predict_rows(rows.X, rows.codes)
        ids, counts = rows.sizes
        squares = np.bincount(rows.codes, residual**2, minlength=len(self.labels))[ids]
        used = self._spent_on_slopes(ids) + int(model.fit_intercept)
        return ids, squares, np.maximum(counts - used, 0.0)

    def _least_squares(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The same for least squares: what a ridge takes away from slopes looks like noise."""
        assert self.rows is not None
        left, degrees, centred = [], [], bool(self.model.fit_intercept)
        safe = np.where(self.metric.deviation > 0, self.metric.deviation, 1.0)
        for _, X, y in self.rows.tasks(centred):
            slopes, _, spent, _ = np.linalg.lstsq(X / safe, y, rcond=None)
            left.append(float(np.sum((y - X / safe @ slopes) ** 2)))
            degrees.append(float(max(len(X) - centred - int(spent), 0)))
        return self.rows.sizes[0], np.array(left), np.array(degrees)

    def _spent_on_slopes(self, ids: np.ndarray) -> np.ndarray:
        """Degrees of freedom of the slopes of tasks ``ids``, each (T',)."""
        assert self.rows is not None
        model, d = self.model, self.coef.shape[1]
        if self.rank is not None:
            return np.full(len(ids), float(self.rank))
        if not np.ptp(model.coef_, axis=0).any():  # one vector for all
            return np.full(len(ids), d / len(self.labels))
        if not isinstance(model, PerTaskRegressor):
            return np.full(len(ids), np.inf)
        # The trace of the ridge's hat matrix, sum_i l_i / (l_i + alpha).
        unit = np.where(self.metric.deviation > 0, self.metric.deviation, np.inf)
        spent = []
        for t, X, _ in self.rows.tasks(bool(model.fit_intercept)):
            values = np.linalg.svd(X / unit, compute_uv=False) ** 2
            values = values[values > ROUNDING * values.max(initial=0.0)]
            spent.append(float(np.sum(values / (values + model.alpha_[t]))))
        return np.array(spent)

    def _fits_off_span(self) -> list[OffSpan]:
        """Least squares of each task with enough rows, in the span and in all features."""
        assert self.rows is not None
        found, centred = [], bool(self.model.fit_intercept)
        mean = self.model.coef_.mean(axis=0)
        safe = np.where(self.metric.deviation > 0, self.metric.deviation, 1.0)
        span: np.ndarray = self.model.representation_
        for t, X, y in self.rows.tasks(centred):
            if len(X) < X.shape[1] + centred + SPARE_ROWS:
                continue
            inner, _, k, _ = np.linalg.lstsq(X @ span, y, rcond=None)
            outer, _, d, _ = np.linalg.lstsq(X / safe, y, rcond=None)
            left = float(np.sum((y - X / safe @ outer) ** 2))
            outside = float(np.sum((y - X @ (span @ inner)) ** 2)) - left
            inside = float(np.sum((X @ (span @ inner - mean)) ** 2))
            spare = len(X) - int(d) - centred
            if d > k:
                found.append(OffSpan(t, inside, max(outside, 0.0), int(d - k), left, spare))
        return found


@dataclass(frozen=True)
class OffSpan:
    """Sums of squares of one task: what the span explains, what other features add, the rest."""

    task: int
    inside: float  # of the deviation from the mean task
    outside: float
    extra: int  # degrees of freedom of outside
    left: float
    spare: int  # degrees of freedom of left
