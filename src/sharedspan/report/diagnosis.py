"""What a fitted model says of its tasks: how much they share, which do not fit, what to do next.

Coefficients are looked at in units of standardised features (the deviations that the model saw, or
those of the rows given), so that a feature in grams weighs as much as the same one in tons.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sharedspan.data.columns import as_target
from sharedspan.data.tasks import is_task_list
from sharedspan.estimators.adaptive import LARGEST_RANK, AdaptiveSpanRegressor
from sharedspan.estimators.base import TaskRegressor, check_is_fitted
from sharedspan.estimators.baselines import PooledRegressor
from sharedspan.subspace import orthonormal_basis

OFF = 0.5  # probability from which a task is named an outlier
STRANGE = 4.0  # robust deviations from the other tasks beyond which one is named
LEAST_SPREAD = 0.1  # of log variances; less would name tasks for differences that do not matter
MOST_STRANGE = 0.25  # share of tasks
UNEQUAL = 2.0  # ratio of noise deviations of tasks from which they had better be told apart
CHANCE = 0.01  # probability that any task at all is named by chance
WEAK = 10.0  # condition number from which the last direction is called weak
UNDETERMINED = 0.05  # share of the usual variance of a task's features along the span
SPARE_ROWS = 5  # rows beyond its features that a task needs to tell what lies off the span
# Of all tasks per number of the model: below, errors are twice the floor (see planning.py).
ROWS_PER_NUMBER = 3
NEGLIGIBLE = 0.01  # variance between tasks over that of the noise
HARD = 1e-10  # share of the variation off the span that is rounding
STANDARD_ERRORS = 2000  # numbers d k up to which standard errors are cheap enough to ask for
NAMED = 5  # tasks named in a sentence
SHOWN = 15  # lines of the table of tasks that do not fit


@dataclass(frozen=True)
class Misfit:
    """One reason why a task does not fit; values are in units of the response."""

    task: Hashable
    what: str  # "coefficients", "noise" or "off the span"
    value: float
    typical: float  # median over the tasks
    surprise: float  # -log10 of the probability by chance; for "coefficients" of being no outlier
    feature: str | None = None  # where coefficients differ most


@dataclass(frozen=True)
class Diagnosis:
    """What ``diagnose`` found; print it. None stands where there is nothing to say.

    Attributes
    ----------
    model : str
        Name of the class.
    n_tasks, n_features : int
    rank : int or None
    condition_number : float or None
        s_1 / s_k of the coefficients within the span; of their deviations from the mean where the
        model has a mean of its own.
    span_share : float or None
        Share of the variation of coefficients between tasks that lies in the span. By the
        coefficients of the model; where these lie in the span by construction and tasks have
        enough rows, by what the span leaves of the rows.
    span_share_by : str
        "coefficients" or "rows", what it was measured by, or "construction": the model knows
        nothing off its span, give rows to measure it.
    noise : float or None
        Standard deviation, the median over tasks.
    outliers : list
        Labels of the tasks that do not fit, the most surprising first.
    misfits : list of Misfit
        Why, in the same order; a task may have several reasons.
    advice : list of str
    signal_to_noise : float or None
        Variance within tasks of the fitted part over that of the noise.
    isometry : float or None
        Largest deviation from one of the eigenvalues of a task's feature covariance along the
        span, after pooled whitening; ``isometry_task`` is the task, ``isometry_by_chance`` about
        what Gaussian features of one covariance would give.
    rows_per_task : dict of label to int
    task_r2 : dict of label to float
        R^2 about the task's own mean; without tasks whose responses are all equal.
    """

    model: str
    n_tasks: int
    n_features: int
    rank: int | None
    condition_number: float | None
    span_share: float | None
    span_share_by: str
    noise: float | None
    outliers: list[Hashable]
    misfits: list[Misfit]
    advice: list[str]
    signal_to_noise: float | None = None
    isometry: float | None = None
    isometry_task: Hashable = None
    isometry_by_chance: float | None = None
    rows_per_task: dict[Hashable, int] = field(default_factory=dict)
    task_r2: dict[Hashable, float] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.model}: {self.n_tasks:,} tasks, {self.n_features:,} features"]
        numbers = list(self._numbers())
        width = max((len(value) for _, value, _ in numbers), default=0)
        lines += [f"  {name:<17}{value:>{width}}  {words}" for name, value, words in numbers]
        if self.misfits:
            lines += ["", f"Tasks that do not fit ({len(self.outliers)} of {self.n_tasks:,}):"]
            lines += _table(self.misfits)
        if self.advice:
            lines += ["", "Advice:"]
            lines += [line for sentence in self.advice for line in _wrapped(sentence)]
        return "\n".join(lines)

    def _numbers(self) -> Iterator[tuple[str, str, str]]:
        """Name, value and explanation of each number that there is."""
        if self.rank is not None:
            words = "directions along which the tasks vary together"
            yield "rank", str(self.rank), words if self.rank else "no direction is shared"
        if self.condition_number is not None and self.rank != 1:
            yield (
                "condition number",
                f"{self.condition_number:#.3g}",
                "strongest direction / weakest",
            )
        if self.span_share is not None and self.rank:
            words = "of the variation of coefficients between tasks"
            if self.span_share_by == "construction":
                words += ", by construction: give rows to measure it"
            yield "in the span", f"{100 * self.span_share:.1f} %", words
        if self.noise is not None:
            yield "noise", f"{self.noise:.3g}", "standard deviation"
        if self.signal_to_noise is not None:
            words = "variance that the slopes explain / variance of the noise"
            yield "signal to noise", f"{self.signal_to_noise:.3g}", words
        if self.rows_per_task:
            rows = list(self.rows_per_task.values())
            words = f"median; fewest {min(rows):,}, most {max(rows):,}"
            yield "rows per task", f"{np.median(rows):,.0f}", words
        if self.task_r2:
            worst = min(self.task_r2, key=self.task_r2.__getitem__)
            words = f"median over tasks; lowest {self.task_r2[worst]:.2f}, task {worst}"
            yield "R^2 within tasks", f"{np.median(list(self.task_r2.values())):.2f}", words
        if self.isometry is not None:
            words = f"task {self.isometry_task}; by chance alone {self.isometry_by_chance:.2g}"
            yield "isometry", f"{self.isometry:.2g}", f"features unlike the pooled ones: {words}"


def diagnose(model: Any, X: Any = None, y: Any = None, task: Any = None) -> Diagnosis:
    """How much the tasks of a fitted model share, which do not fit, and what to do about it.

    Parameters
    ----------
    model : fitted estimator of this package
        Or a Pipeline that ends in one.
    X, y, task : optional
        Rows, as for ``fit``; those of the fit tell the most. They add ``signal_to_noise``,
        ``isometry``, rows and R^2 per task, and find tasks that do not fit by their residuals.
        Rows of tasks that were not fitted are passed over.

    Returns
    -------
    Diagnosis
        Print it for an explanation.

    Examples
    --------
    >>> import sharedspan as ss
    >>> sim = ss.simulate(n_tasks=60, n_features=20, rank=2, n_samples=50, outliers=0.05,
    ...                   random_state=0)
    >>> model = ss.AdaptiveSpanRegressor().fit(sim.X, sim.y, task=sim.task)
    >>> sorted(ss.diagnose(model).outliers) == sim.is_outlier.nonzero()[0].tolist()
    True
    """
    if hasattr(model, "steps"):  # a Pipeline
        check_is_fitted(model[-1])
        model, X = model[-1], X if X is None else model[:-1].transform(X)
    check_is_fitted(model)
    if not isinstance(model, TaskRegressor):
        raise TypeError(f"The model is a {type(model).__name__}: give an estimator of sharedspan.")
    if X is None and y is not None:
        raise ValueError("y was given without X: give both, or neither.")
    rows = None if X is None else _read_rows(model, X, y, task)
    look = _Look(model, rows)
    misfits = look.misfits()
    outliers = list(dict.fromkeys(misfit.task for misfit in misfits))
    good = np.array([label not in set(outliers) for label in look.labels])
    found: dict[str, Any] = {
        "model": type(model).__name__,
        "n_tasks": len(model.coef_),
        "n_features": model.coef_.shape[1],
        "rank": look.rank,
        "condition_number": look.condition_number(good),
        "span_share": look.span_share(good),
        "span_share_by": look.share_by,
        "noise": look.noise,
        "outliers": outliers,
        "misfits": misfits,
    }
    if rows is not None:
        found["signal_to_noise"] = look.signal_to_noise()
        found["rows_per_task"] = {look.labels[t]: int(n) for t, n in zip(*rows.sizes, strict=True)}
        found["task_r2"] = look.task_r2()
        found |= look.isometry()
    return Diagnosis(**found, advice=list(_advice(look, Diagnosis(**found, advice=[]), good)))


@dataclass(frozen=True)
class _Rows:
    """Rows of fitted tasks, task by task."""

    X: np.ndarray  # (rows, d)
    y: np.ndarray | None  # (rows,)
    codes: np.ndarray  # (rows,) ascending

    @property
    def sizes(self) -> tuple[np.ndarray, np.ndarray]:
        """Codes of the tasks that have rows, and how many."""
        return np.unique(self.codes, return_counts=True)

    def tasks(self, centred: bool) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Code, features (n, d) and responses (n,) of each task, less their means if centred.

        Where there are no responses they are zero.
        """
        ids, counts = self.sizes
        ends = np.cumsum(counts)
        for t, lo, hi in zip(ids, ends - counts, ends, strict=True):
            X, y = self.X[lo:hi], np.zeros(hi - lo) if self.y is None else self.y[lo:hi]
            if centred:
                X, y = X - X.mean(axis=0), y - y.mean()
            yield int(t), X, y


def _read_rows(model: TaskRegressor, X: Any, y: Any, task: Any) -> _Rows:
    """Rows through the same door as those to predict."""
    if is_task_list(X):
        parts = [model._rows_to_predict(*pair) for pair in model._blocks_to_predict(X, task)]
        features = np.concatenate([part for part, _ in parts])
        codes = np.concatenate([part for _, part in parts])
        y = None if y is None else np.concatenate([np.asarray(part).ravel() for part in y])
    else:
        features, codes = model._rows_to_predict(X, task)
    target = None if y is None else as_target(y, len(features)).astype(float)
    order = np.argsort(codes, kind="stable")
    order = order[codes[order] >= 0]
    if not len(order):
        raise ValueError("No row belongs to a fitted task: give rows of tasks that were fitted.")
    target = None if target is None else target[order]
    return _Rows(features[order].astype(float), target, codes[order])


class _Look:
    """A model, and rows if there are any, as the diagnosis sees them."""

    def __init__(self, model: TaskRegressor, rows: _Rows | None) -> None:
        self.model, self.rows = model, rows
        known = model.tasks_
        self.labels: list[Hashable] = list(known) if known.dtype == object else known.tolist()
        self.adaptive = isinstance(model, AdaptiveSpanRegressor)
        basis = getattr(model, "representation_", None)
        self.rank: int | None = None if basis is None else int(model.rank_)
        deviation = _feature_deviations(model, rows)
        self.coef = model.coef_ * deviation  # (T, d)
        centre = getattr(model, "mean_coef_", None)
        self.shift = self.coef - (self.coef.mean(axis=0) if centre is None else centre * deviation)
        self.deviation = deviation
        self.basis = np.zeros((len(deviation), 0))  # (d, k) of standardised features
        if basis is not None and basis.size:
            self.basis = orthonormal_basis(basis * deviation[:, None])
        off = self.shift - self.shift @ self.basis @ self.basis.T
        self.off_span = np.linalg.norm(off, axis=1)  # (T,)
        self.off_feature = np.abs(off).argmax(axis=1)
        # Coefficients that cannot leave the span say nothing of what lies off it.
        self.hard = bool(self.rank) and not self.adaptive
        self.hard = self.hard and np.sum(off**2) <= HARD * np.sum(self.coef**2)
        self.residuals = None if rows is None or rows.y is None else self._residual_squares()
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
        user = getattr(self.model, "representation_", np.zeros((self.coef.shape[1], 0)))
        if not user.size:
            return np.zeros((0, 0, 0)), [], []
        for t, X, _ in self.rows.tasks(self.model.fit_intercept):
            Z = X @ user
            moments.append(Z.T @ Z / len(Z))
            codes.append(t)
            sizes.append(len(Z))
        return np.stack(moments), codes, sizes

    # Residuals

    def _residual_squares(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Codes, sums of squared residuals and about their degrees of freedom, each (T',)."""
        assert self.rows is not None
        model, rows = self.model, self.rows
        assert rows.y is not None
        residual = rows.y - model._predict_rows(rows.X, rows.codes)
        ids, counts = rows.sizes
        squares = np.bincount(rows.codes, residual**2, minlength=len(self.labels))[ids]
        used = (self.rank or 0) + int(model.fit_intercept)
        if self.rank is None:  # slopes of their own, or one vector for all
            d = model.coef_.shape[1]
            used += d if np.ptp(model.coef_, axis=0).any() else d / len(self.labels)
        return ids, squares, np.maximum(counts - used, 0).astype(float)

    def _fits_off_span(self) -> list[_OffSpan]:
        """Least squares of each task with enough rows, in the span and in all features."""
        assert self.rows is not None
        found, centred = [], bool(self.model.fit_intercept)
        mean = self.model.coef_.mean(axis=0)
        safe = np.where(self.deviation > 0, self.deviation, 1.0)
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
                found.append(_OffSpan(t, inside, max(outside, 0.0), int(d - k), left, spare))
        return found

    # Tasks that do not fit

    def misfits(self) -> list[Misfit]:
        """Tasks that do not fit, the most surprising first."""
        found = [*self._off_by_probability(), *self._off_by_span(), *self._off_by_noise()]
        most: dict[Hashable, tuple[float, float]] = {}
        for misfit in found:
            size = (misfit.surprise, misfit.value)
            most[misfit.task] = max(most.get(misfit.task, size), size)
        return sorted(found, key=lambda misfit: most[misfit.task], reverse=True)

    def _off_by_probability(self) -> Iterator[Misfit]:
        """By the model's own word."""
        off = getattr(self.model, "outlier_probability_", np.zeros(0))
        typical = float(np.median(self.off_span))
        if typical <= np.sqrt(HARD) * self.off_span.max():  # rounding
            typical = 0.0
        for t in np.flatnonzero(off > OFF):
            yield Misfit(
                task=self.labels[t],
                what="coefficients",
                value=float(self.off_span[t]),
                typical=typical,
                surprise=float(-np.log10(max(1 - off[t], 1e-16))),
                feature=str(self.model.coef_names_[self.off_feature[t]]),
            )

    def _off_by_span(self) -> Iterator[Misfit]:
        """Tasks that other features explain, far beyond what the span leaves of the others."""
        from scipy.stats import f

        if not self.fits or not self.noise:
            return
        ratio = np.array([fit.outside / fit.extra for fit in self.fits])
        own = np.array([fit.left / fit.spare for fit in self.fits])
        extra, spare = np.array([(fit.extra, fit.spare) for fit in self.fits]).T
        statistic = ratio / np.maximum(own, np.finfo(float).tiny)
        chance = f.logsf(statistic, extra, spare)
        for i in _strange(statistic, chance, len(self.labels)):
            yield Misfit(
                task=self.labels[self.fits[i].task],
                what="off the span",
                value=float(np.sqrt(ratio[i])),
                typical=float(np.sqrt(np.median(ratio))),
                surprise=float(-chance[i] / np.log(10)),
            )

    def _off_by_noise(self) -> Iterator[Misfit]:
        """Tasks with far more noise than the others: by residuals, or else as they were fitted."""
        from scipy.stats import chi2

        variance = np.asarray(getattr(self.model, "noise_variance_", np.zeros(0)))
        ids, chance = np.arange(len(variance)), None
        if self.residuals is not None:
            ids, squares, degrees = self.residuals
            spare = degrees > 0
            ids, degrees = ids[spare], degrees[spare]
            variance = squares[spare] / degrees
        if len(ids) < 3 or not self.noise or not np.median(variance) > 0:
            return
        if self.residuals is not None:
            chance = chi2.logsf(variance / np.median(variance) * degrees, degrees)
        for i in _strange(variance, chance, len(self.labels)):
            yield Misfit(
                task=self.labels[ids[i]],
                what="noise",
                value=float(np.sqrt(variance[i])),
                typical=float(np.sqrt(np.median(variance))),
                surprise=STRANGE if chance is None else float(-chance[i] / np.log(10)),
            )


@dataclass(frozen=True)
class _OffSpan:
    """Sums of squares of one task: what the span explains, what other features add, the rest."""

    task: int
    inside: float  # of the deviation from the mean task
    outside: float
    extra: int  # degrees of freedom of outside
    left: float
    spare: int  # degrees of freedom of left


def _strange(values: np.ndarray, chance: np.ndarray | None, n_tasks: int) -> np.ndarray:
    """Positions of values far above the others and, by log probabilities, beyond chance.

    Both are asked for: a real table has no task that fits by the letter of a test, and among few
    tasks one is always the largest.
    """
    if len(values) < 3:
        return np.zeros(0, dtype=np.int64)
    logs = np.log(np.maximum(values, np.finfo(float).tiny))
    middle = np.median(logs)
    spread = 1.4826 * np.median(np.abs(logs - middle))
    far = logs - middle > STRANGE * max(spread, LEAST_SPREAD)
    if chance is not None:
        far &= chance < np.log(CHANCE / n_tasks)
    # Many at once are no outliers, but two kinds of tasks.
    return np.flatnonzero(far & (far.mean() <= MOST_STRANGE))


def _feature_deviations(model: TaskRegressor, rows: _Rows | None) -> np.ndarray:
    """Standard deviations of the features, (d,): of the fit if the model kept them, or of rows."""
    kept = getattr(model, "_posterior_", None) or getattr(model, "_uncertainty_", None)
    canonical = getattr(kept, "canonical", None)
    scaling = getattr(kept, "scaling", None)
    if canonical is not None and getattr(model, "whiten", False):
        # PP' is the inverse covariance; its rows are brought to one size for the digits' sake.
        size = np.linalg.norm(canonical.P, axis=1)
        inverse = np.linalg.pinv(canonical.P / np.where(size > 0, size, 1)[:, None])
        deviation = np.linalg.norm(inverse, axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(size > 0, deviation / (size * canonical.units.scale), 0.0)
    if canonical is not None and scaling is not None:
        P = 1.0 if canonical.P is None else np.diag(canonical.P)
        return scaling.scale / (canonical.units.scale * P)
    if rows is not None and len(rows.X) > 1:
        return rows.X.std(axis=0)
    return np.ones(model.coef_.shape[1])


def _advice(look: _Look, found: Diagnosis, good: np.ndarray) -> Iterator[str]:
    """What to do, each sentence by a rule of its own."""
    model = look.model
    if getattr(model, "converged_", True) is False:
        why = getattr(model, "message_", "").rstrip(".")
        remedy = "see whether a smaller rank= or fewer features predict as well."
        if hasattr(model, "max_iter"):
            remedy = "raise max_iter, or lower the rank."
        said = f"The fit did not converge ({why})" if why else "The fit did not converge"
        yield f"{said}: do not trust the last digits; {remedy}"
    if found.outliers:
        many = len(found.outliers) > 1
        yield (
            f"Task{'s' if many else ''} {_names(found.outliers)} "
            f"{'do' if many else 'does'} not fit: look at {'their' if many else 'its'} rows before "
            "you use the predictions."
        )
    if _no_variation(look, good):
        yield (
            "The slopes hardly vary between tasks: PooledRegressor, with one slope vector for all, "
            "does the same."
        )
    elif look.rank:
        yield from _advice_on_span(look, found)
    if look.rank and look.rows is not None:
        yield from _advice_on_rows(look, found)
    ratio = _noise_ratio(look, good)
    if getattr(model, "noise", None) == "shared" and ratio > UNEQUAL:
        yield (
            f"One task in ten has over {ratio:.1f} times the noise of another tenth: use "
            "noise='per_task'."
        )


def _advice_on_span(look: _Look, found: Diagnosis) -> Iterator[str]:
    model, rank = look.model, look.rank
    assert rank is not None
    T, d = look.coef.shape
    if isinstance(getattr(model, "rank", None), str):
        largest = min(d, T)
        if look.adaptive:
            largest = min(d + int(model.fit_intercept), T - 1, LARGEST_RANK)
        if rank >= largest > 1:
            yield (
                f"The rank, {rank}, is the largest that was looked at: the tasks share little. "
                + ("Give a larger rank= to look further." if rank < min(d, T) and look.adaptive
                   else "PerTaskRegressor may do as well." if look.adaptive
                   else "Try AdaptiveSpanRegressor, which need not find a span.")
            )  # fmt: skip
    kappa, share = found.condition_number, found.span_share
    if kappa is not None and kappa > WEAK:
        yield (
            f"The last of the {rank} directions is {kappa:.0f} times weaker than the first: read "
            f"little into it, and see whether rank={rank - 1} predicts as well."
        )
    if share is not None and share < 0.5:
        yield (
            f"Only {100 * share:.0f} % of the variation between tasks lies in the span: "
            + ("read slope_std_ before representation_." if look.adaptive
               else "use AdaptiveSpanRegressor, which lets tasks leave it.")
        )  # fmt: skip


def _advice_on_rows(look: _Look, found: Diagnosis) -> Iterator[str]:
    model, rank, rows = look.model, look.rank or 0, found.rows_per_task
    T, d = look.coef.shape
    needed = rank + int(model.fit_intercept) + 1
    few = [label for label, n in rows.items() if n < needed]
    if few:
        yield (
            f"{len(few)} of {len(rows)} tasks have fewer than the {needed} rows that rank {rank} "
            f"needs ({_names(few)}): "
            + ("theirs are mostly the common coefficients." if look.adaptive
               else "give more rows, lower the rank, or use AdaptiveSpanRegressor.")
        )  # fmt: skip
    numbers = rank * (d + T - rank)
    total = sum(rows.values())
    if look.hard and len(rows) == T and not few and total < ROWS_PER_NUMBER * numbers:
        yield (
            f"There are {total / numbers:.1f} rows for each of the {numbers:,} numbers of a span "
            f"of rank {rank}: too few to learn it well; lower the rank or use "
            "AdaptiveSpanRegressor."
        )
    still = [label for label in rows if label not in few]
    flat = [look.labels[t] for t, value in look.least.items() if value < UNDETERMINED]
    flat = [label for label in flat if label in still]
    if flat:
        yield (
            f"The features of task{'s' if len(flat) > 1 else ''} {_names(flat)} hardly vary along "
            "some direction of the span: coefficients there are not from rows of their own."
        )


def _no_variation(look: _Look, good: np.ndarray) -> bool:
    """Whether slopes differ between tasks by nothing that matters, or no more than by chance."""
    model, T = look.model, len(look.labels)
    if T == 1 or isinstance(model, PooledRegressor):
        return False
    total = float(np.sum(look.shift[good] ** 2))
    if total <= 1e-12 * np.sum(look.coef[good] ** 2):
        return True
    # With standardised features this is the variance that slopes of their own explain.
    if look.noise and total / good.sum() < NEGLIGIBLE * look.noise**2:
        return True
    if look.adaptive:  # its coefficients are shrunk: what is left of them is there
        return False
    if look.rank is None or look.rank * look.coef.shape[1] > STANDARD_ERRORS:
        return False
    error = getattr(model, "coef_std_", None)
    return error is not None and total <= float(np.sum((error * look.deviation)[good] ** 2))


def _noise_ratio(look: _Look, good: np.ndarray) -> float:
    """Ninth over first decile of the tasks' noise deviations, less what chance makes of it."""
    if look.residuals is None:
        return 1.0
    ids, squares, degrees = look.residuals
    kept = good[ids] & (degrees >= 10) & (squares > 0)
    if kept.sum() < 10:
        return 1.0
    logs = 0.5 * np.log(squares[kept] / degrees[kept])
    # A log deviation of f degrees of freedom has variance 1 / 2f; deciles lie 2.56 apart.
    apart = np.subtract(*np.quantile(logs, [0.9, 0.1])) / 2.56
    excess = apart**2 - np.mean(0.5 / degrees[kept])
    return float(np.exp(2.56 * np.sqrt(max(excess, 0.0))))


def _names(labels: Sequence[Hashable]) -> str:
    """Some labels, in words."""
    shown = [str(label) for label in labels[:NAMED]]
    if len(labels) > NAMED:
        return f"{', '.join(shown)} and {len(labels) - NAMED} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def _table(misfits: Sequence[Misfit]) -> list[str]:
    """Lines of the table of tasks that do not fit."""
    words = {
        "coefficients": "coefficients off the common pattern",
        "off the span": "features off the span explain it",
        "noise": "more noise than others",
    }
    cells = [("task", "what is odd", "here", "typical")]
    for misfit in misfits[:SHOWN]:
        what = words[misfit.what] + (f", most in {misfit.feature}" if misfit.feature else "")
        cells.append((str(misfit.task), what, f"{misfit.value:.3g}", f"{misfit.typical:.3g}"))
    a, b, c, e = (max(map(len, column)) for column in zip(*cells, strict=True))
    lines = [f"  {i:<{a}}  {w:<{b}}  {x:>{c}}  {m:>{e}}" for i, w, x, m in cells]
    if len(misfits) > SHOWN:
        lines.append(f"  and {len(misfits) - SHOWN} more")
    return lines


def _wrapped(sentence: str) -> list[str]:
    from textwrap import wrap

    return wrap(sentence, 88, initial_indent="  - ", subsequent_indent="    ")
