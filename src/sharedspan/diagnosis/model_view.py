"""A fitted model as the diagnosis reads it: measures of its coefficients, and of rows if given.

Coefficients are compared by their predictions (metric.py), so that the units of features do not
matter, and neither do effects that cancel between collinear features.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import Any

import numpy as np

from sharedspan.diagnosis.losses import scores
from sharedspan.diagnosis.rows import RowsByTask, rows_by_task
from sharedspan.estimators.base import fitted_span_of
from sharedspan.estimators.directions import CoefficientView, covariances_of
from sharedspan.estimators.generalized import predict_family
from sharedspan.estimators.prediction import predicted_mean
from sharedspan.mixed_model.posterior import Posterior

SPARE_ROWS = 5  # rows beyond its features that a task needs to measure effects outside the span
ROUNDING = 1e-12  # of the largest eigenvalue of a Gram
DAMPING = 1e-5  # of a task's covariance, which large models store in single precision
NO_VARIATION = 1e-10  # share of the variation outside the span that is rounding


class ModelView(CoefficientView):
    """A fitted model, or a Pipeline that ends in one, and rows if they are given.

    Attributes
    ----------
    rows : RowsByTask or None
    labels : list
        Labels of the tasks.
    off_span : ndarray of shape (T,)
        Norms of the deviations outside the span.
    distance : ndarray of shape (T,)
        Root mean squares of the differences between a task's predictions and those of the mean
        task, for rows with the mean and the covariance within tasks of the features.
    confined : bool
        Whether coefficients cannot leave the span, so that they are not informative outside it.
    family, is_normal : Family and bool
        The family of the responses, and whether it is normal or a robust version of that.
    residuals : tuple of ndarray or None
        Task codes, sums of squared residuals and their approximate degrees of freedom, (T',) each;
        of normal responses only.
    noise : float or None
        Standard deviation, from the mean of the tasks' variances as in ``summary``; of normal
        responses only.
    """

    def __init__(self, model: Any, X: Any = None, y: Any = None, task: Any = None) -> None:
        pipeline = model if getattr(model, "steps", None) else None
        if pipeline is not None:
            model = pipeline[-1]
        span = fitted_span_of(model)
        if pipeline is not None and len(pipeline.steps) > 1 and X is not None:
            X = pipeline[:-1].transform(X)
        if X is not None and span.extra.get("uses_offset"):
            raise ValueError(
                "The model was fitted with an offset or exposure, which X, y and task do not "
                "contain: leave them out."
            )
        if not len(model.coef_names_):
            raise ValueError(
                "The model has only intercepts, and no slopes that could be compared: "
                "print(model.summary()) shows what it has."
            )
        self.rows = None if X is None else rows_by_task(model, X, y, task)
        given = () if self.rows is None else (self.rows.X, self.rows.codes)
        super().__init__(model, *given)
        tasks = model.tasks_
        self.labels: list[Hashable] = list(tasks) if tasks.dtype == object else tasks.tolist()
        off = self.shift - self.shift @ self.basis @ self.basis.T
        self.off_span = np.linalg.norm(off, axis=1)
        small = np.sum(off**2) <= NO_VARIATION * np.sum(self.coef**2)
        self.confined = bool(self.rank and not self.is_population and small)
        self.residuals = None
        if self.is_normal and self.rows is not None and self.rows.y is not None:
            self.residuals = self._residual_squares(self.rows, self.rows.y)
        self.noise = self._noise_deviation()

    @cached_property
    def collinear(self) -> list[list[str]]:
        """Names of features that are nearly combinations of each other, group by group.

        Those of a curve of one column are one variable, which has the name of the column.
        """
        columns = vars(self.model).get("columns_")
        names = list(self.names)
        if columns is not None:
            sources = columns.column_of
            curved = {sources[j] for j in np.flatnonzero(np.asarray(columns.groups) >= 0)}
            names = [s if s in curved else n for s, n in zip(sources, names, strict=True)]
        groups = [list(dict.fromkeys(names[f] for f in one)) for one in self.metric.groups]
        return [group for group in groups if len(group) > 1]

    @cached_property
    def levels(self) -> np.ndarray:
        """What the model predicts of each task at the mean of the features, less its mean, (T,)."""
        span, centre = self.span, np.zeros(len(self.names))
        if isinstance(span.uncertainty, Posterior):
            centre = span.uncertainty.feature_means()
        elif (canonical := getattr(span.uncertainty, "canonical", None)) is not None:
            centre = canonical.units.origin
        elif self.rows is not None:
            centre = self.rows.X.mean(axis=0)
        levels = span.intercept + span.coef @ centre
        if span.mean_coef is None or span.mean_intercept is None:
            return levels - levels.mean()
        return levels - (span.mean_intercept + span.mean_coef @ centre)

    @cached_property
    def random_levels(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Levels of the tasks and their variances under the model, (2, T) each.

        A level is what the model predicts of a task less what it predicts of the mean task: at the
        mean of the features, and at the features for which it is most certain, near the mean of the
        task's own rows. As an estimate of a normal response it varies as much less between tasks as
        it is uncertain. None if levels are not random effects.
        """
        posterior, T = self.span.uncertainty, len(self.labels)
        if not isinstance(posterior, Posterior) or not self.centred:
            return None
        if posterior.between is None or not posterior.between[0, 0] > 0:
            return None
        centre = posterior.standard_rows(posterior.feature_means()[None])[0]
        levels, expected = np.empty((2, T)), np.empty((2, T))
        step = max(int(1e7 / len(centre) ** 2), 1)
        for begin in range(0, T, step):
            tasks = slice(begin, min(begin + step, T))
            covariance = covariances_of(posterior, tasks)
            shift = posterior.mean[tasks] - posterior.b
            own = _most_certain_rows(covariance)
            for i, Z in enumerate((np.broadcast_to(centre, own.shape), own)):
                levels[i, tasks] = np.einsum("tj,tj->t", Z, shift)
                expected[i, tasks] = np.einsum("ti,ij,tj->t", Z, posterior.between, Z)
                if self.is_normal:
                    expected[i, tasks] -= np.einsum("ti,tij,tj->t", Z, covariance, Z)
        unit = posterior.user_scale()
        return unit * levels, unit**2 * np.maximum(expected, 0.0)

    @cached_property
    def distance(self) -> np.ndarray:
        return np.hypot(self.levels, np.linalg.norm(self.shift, axis=1))

    def _noise_deviation(self) -> float | None:
        variance = self.span.noise_variance
        if variance is not None and np.isfinite(variance).any():
            return float(np.sqrt(np.nanmean(variance)))
        if self.residuals is not None and self.residuals[2].sum() > 0:
            return float(np.sqrt(self.residuals[1].sum() / self.residuals[2].sum()))
        return None

    @cached_property
    def means(self) -> np.ndarray:
        """Mean responses that the model predicts for its rows, (rows,)."""
        assert self.rows is not None
        if self.is_normal:
            return predicted_mean(self.model, self.rows.X, self.rows.codes)
        model: Any = self.model
        return predict_family(model, self.rows.X, self.rows.codes, None)[0]

    # Numbers

    def scores(self) -> dict[str, float]:
        """Scores of the means of the rows, unless responses are normal; see ``losses.py``."""
        if self.is_normal or self.rows is None or self.rows.y is None:
            return {}
        return scores(self.family, self.rows.y, self.means)

    def condition_number(self, good: np.ndarray) -> float | None:
        """Ratio of the largest to the smallest singular value within the span, over tasks ``good``.

        ``good`` (T,) is a mask. Infinite if the smallest is below the rounding of the largest.
        """
        if not self.basis.size:
            return None
        V = (self.shift if self.is_population else self.coef)[good]
        s = np.linalg.svd(V @ self.basis, compute_uv=False)
        if len(s) < self.basis.shape[1] or s[0] == 0:
            return None
        return float(s[0] / s[-1]) if s[-1] > np.finfo(float).eps * s[0] else float("inf")

    def span_share(self, good: np.ndarray) -> tuple[float | None, str]:
        """Share of the variation between tasks ``good`` (T,) that is in the span, and its source.

        The source is "coefficients", "rows" or "construction".
        """
        if self.rank is None:
            return None, "coefficients"
        fits = self.fits_off_span
        if len(fits):
            fitting = good[fits[:, 0].astype(int)]
            fits = fits[fitting] if fitting.any() else fits
            _, inside, outside, extra, left, spare = fits.T
            noise, n = left.sum() / spare.sum(), len(left)
            # The span itself was fitted, with k (d - k) parameters.
            spent = self.rank * extra[0] * n / len(self.labels)
            within = max(float(inside.sum() - noise * self.rank * n), 0.0)
            beyond = max(float(np.sum(outside - noise * extra) + noise * spent), 0.0)
            return (within / (within + beyond) if within + beyond > 0 else None), "rows"
        source = "construction" if self.confined else "coefficients"
        total = float(np.sum(self.shift[good] ** 2))
        if total <= np.finfo(float).eps * np.sum(self.coef[good] ** 2):
            return None, source
        return 1 - float(np.sum(self.off_span[good] ** 2)) / total, source

    def signal_to_noise(self) -> float | None:
        """Ratio of the variance within tasks of Xv to the noise variance."""
        if self.rows is None or not self.noise:
            return None
        variance = self.span.noise_variance
        level = self.noise**2 if variance is None else float(np.nanmean(variance))
        coef = self.span.coef
        squares = (np.sum((X @ coef[t]) ** 2) for t, X, _ in self.rows.tasks(self.centred))
        return float(sum(squares)) / len(self.rows.X) / level

    def task_r2(self) -> dict[Hashable, float]:
        """R^2 about the mean of each task, without tasks whose responses are all equal."""
        if self.residuals is None or self.rows is None:
            return {}
        tasks = ((t, y) for t, _, y in self.rows.tasks(False))
        return {
            self.labels[t]: 1 - float(squares) / float(np.sum((y - y.mean()) ** 2))
            for (t, y), squares in zip(tasks, self.residuals[1], strict=True)
            if np.ptp(y) > 0
        }

    def isometry(self) -> dict[str, Any]:
        """The task whose features vary most differently from all tasks' along the span."""
        if self.rows is None or not self.span_eigenvalues:
            return {}
        worst = {t: np.abs(values - 1).max() for t, values in self.span_eigenvalues.items()}
        t = max(worst, key=worst.__getitem__)
        rows = int(np.sum(self.rows.codes == t))
        ratio = np.sqrt(self.basis.shape[1] / max(rows - self.centred, 1))
        return {
            "isometry": float(worst[t]),
            "isometry_task": self.labels[t],
            "isometry_by_chance": float((1 + ratio) ** 2 - 1),
        }

    @cached_property
    def span_moments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Codes (T',) of tasks with rows, their B'S_t B and their shifts along B, whitened.

        Within the span whitening by the pooled mean of B'S_t B, (T', k, k), equals whitening all
        features first. Shifts are (T', k).
        """
        if self.rows is None or not self.rank or self.representation is None:
            return None
        size = np.abs(self.representation * self.metric.deviation[:, None]).max(axis=0)
        basis = self.representation / np.where(size > 0, size, 1.0)  # whose squares are finite
        along = [X @ basis for _, X, _ in self.rows.tasks(self.centred)]
        moments = np.stack([Z.T @ Z / len(Z) for Z in along])
        ids, counts = self.rows.sizes
        values, axes = np.linalg.eigh(np.average(moments, axis=0, weights=counts))
        if values[0] <= ROUNDING * values[-1]:
            return None
        root = axes / np.sqrt(values)
        shift = (self.span.coef - self.span.coef.mean(axis=0)) @ np.linalg.pinv(basis).T
        return ids, root.T @ moments @ root, shift[ids] @ axes * np.sqrt(values)

    @cached_property
    def span_eigenvalues(self) -> dict[int, np.ndarray]:
        """Eigenvalues (k,) of the whitened B'S_t B of each task with rows."""
        if self.span_moments is None:
            return {}
        ids, moments, _ = self.span_moments
        return dict(zip(ids.tolist(), np.linalg.eigvalsh(moments), strict=True))

    def undetermined(self, share: float) -> list[int]:
        """Codes of tasks whose features hardly vary along some direction of the span.

        They have less than ``share`` of the usual variance there, and their own rows give the
        coefficient with a larger error than tasks differ by.
        """
        if self.span_moments is None or self.rows is None:
            return []
        ids, moments, shift = self.span_moments
        values, axes = np.linalg.eigh(moments)
        flat, direction = values[:, 0], axes[:, :, 0]
        between = shift.T @ shift / len(shift)
        spread = np.einsum("ij,ij->i", direction @ between, direction)  # along it
        unsure = flat < share
        if self.noise:
            unsure &= self.rows.sizes[1] * flat * spread < self.noise**2
        return ids[unsure].tolist()

    # Residuals

    def _residual_squares(
        self, rows: RowsByTask, y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Task codes, sums of squares and degrees of freedom, zero if these are not known."""
        residual = y - predicted_mean(self.model, rows.X, rows.codes)
        ids, counts = rows.sizes
        squares = np.bincount(rows.codes, residual**2, minlength=len(self.labels))[ids]
        used = self._degrees_of_slopes(rows, ids) + int(self.centred)
        return ids, squares, np.maximum(counts - used, 0.0)

    def _degrees_of_slopes(self, rows: RowsByTask, ids: np.ndarray) -> np.ndarray:
        """Degrees of freedom of the slopes of tasks ``ids``, (T',)."""
        if self.rank is not None:
            return np.full(len(ids), float(self.rank))
        if not np.ptp(self.span.coef, axis=0).any():  # all tasks have the same slopes
            return np.full(len(ids), self.coef.shape[1] / len(self.labels))
        if self.model.shares != "nothing":
            return np.full(len(ids), np.inf)
        # The trace of the ridge's hat matrix, sum_i l_i / (l_i + alpha).
        unit = np.where(self.metric.deviation > 0, self.metric.deviation, np.inf)
        spent = []
        for t, X, _ in rows.tasks(self.centred):
            values = np.linalg.svd(X / unit, compute_uv=False) ** 2
            values = values[values > ROUNDING * values.max(initial=0.0)]
            spent.append(float(np.sum(values / (values + self.span.extra["alpha"][t]))))
        return np.array(spent)

    def _least_squares(self, X: np.ndarray, y: np.ndarray) -> tuple[float, int]:
        """Residual sum of squares and rank of a task's least squares fit in all features."""
        Z = X / np.where(self.metric.deviation > 0, self.metric.deviation, 1.0)
        slopes, _, rank, _ = np.linalg.lstsq(Z, y, rcond=None)
        return float(np.sum((y - Z @ slopes) ** 2)), int(rank)

    @cached_property
    def noise_squares(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """The residuals; those of least squares for ridge, whose shrinkage resembles noise."""
        if self.residuals is None or self.rows is None or self.model.shares != "nothing":
            return self.residuals
        fits = [(len(X), *self._least_squares(X, y)) for _, X, y in self.rows.tasks(self.centred)]
        rows, left, spent = np.array(fits, dtype=float).T
        return self.residuals[0], left, np.maximum(rows - self.centred - spent, 0.0)

    @cached_property
    def fits_off_span(self) -> np.ndarray:
        """Least squares of each task with enough rows, in the span and in all features, (T', 6).

        Columns are the task, the sum of squares that the span explains about the mean task, the
        sum that other features add with its degrees of freedom, and the residual sum with its.
        """
        if not self.confined or self.residuals is None or self.rows is None:
            return np.zeros((0, 6))
        fits, mean, span = [], self.span.coef.mean(axis=0), self.representation
        for t, X, y in self.rows.tasks(self.centred):
            if len(X) < X.shape[1] + self.centred + SPARE_ROWS:
                continue
            inner, _, k, _ = np.linalg.lstsq(X @ span, y, rcond=None)
            left, d = self._least_squares(X, y)
            outside = float(np.sum((y - X @ (span @ inner)) ** 2)) - left
            inside = float(np.sum((X @ (span @ inner - mean)) ** 2))
            if d > k:
                fits.append((t, inside, max(outside, 0.0), d - k, left, len(X) - d - self.centred))
        return np.array(fits, dtype=float).reshape(-1, 6)


def _most_certain_rows(covariance: np.ndarray) -> np.ndarray:
    """Rows [1, features] at which the predictor of each task has the least variance, (T, p).

    Intercepts and slopes have the given covariances (T, p, p). Features whose slopes are known, as
    they do not vary between tasks, are zero there.
    """
    slopes = covariance[:, 1:, 1:]
    size = np.einsum("tii->t", slopes)[:, None, None]
    damping = DAMPING * np.where(size > 0, size, 1.0) * np.eye(slopes.shape[1])
    features = np.linalg.solve(slopes + damping, -covariance[:, 1:, :1])
    return np.concatenate([np.ones((len(slopes), 1)), features[:, :, 0]], axis=1)
