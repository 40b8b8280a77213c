"""Tasks that do not fit: by outlier probabilities, features outside the span, noise, or place.

A place is how far a task is along a shared direction. One direction holds any task along it, so a
few tasks that are far from all others show in their places alone.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass

import numpy as np

from sharedspan.diagnosis.model_view import NO_VARIATION, SPARE_ROWS, ModelView
from sharedspan.mixed_model.posterior import Posterior

REASONS = {
    "coefficients": "coefficients outside the common pattern",
    "off the span": "explained by features outside the span, over its noise",
    "noise": "more noise than others",
    "place": "far from the others along a shared direction",
    "slope": "a coefficient far from those of the others",
    "level": "a level far from those of the others",
}
OFF = 0.5  # probability from which a task is called an outlier
STRANGE = 4.0  # robust standard deviations from the other tasks beyond which a task is reported
FEWEST_PLACES = 10  # tasks
FAR = 5.0  # robust standard deviations from the others beyond which a task's place is reported
LEAST_PLACE = 0.1  # of the noise; a smaller spread of places would report unimportant differences
FEWEST_ROWS = 3  # of a task whose coefficients are judged: one for its level, two for a slope
LEAST_LEVEL = 0.05  # of the variance between tasks: the least that a task's estimated level has
LEAST_SPREAD = 0.1  # of log variances; a smaller one would report unimportant differences
MOST_STRANGE = 0.25  # share of tasks up to which they are reported
MOST_ROWS = 0.5  # share of the degrees of freedom of tasks up to which their noise is reported
CHANCE = 0.01  # probability that any task is reported by chance


@dataclass(frozen=True)
class Misfit:
    """One reason why a task does not fit.

    Values are in units of the response. For the reason "off the span" the value is how much other
    features explain per degree of freedom, in standard deviations of the task's own noise.
    """

    task: Hashable
    what: str  # a key of REASONS
    value: float
    typical: float  # median over the tasks; for noise, over their degrees of freedom
    surprise: float  # -log10 of the p-value, or of the probability of not being an outlier
    feature: str | None = None  # whose coefficient differs most

    @property
    def reason(self) -> str:
        """The reason as text, without the feature."""
        return REASONS[self.what]


def find_misfits(view: ModelView) -> list[Misfit]:
    """Tasks that do not fit, the most surprising first."""
    misfits = [*_by_probability(view)]
    known = {one.task for one in misfits}
    misfits += [*_by_span(view), *_by_noise(view), *_by_place(view, known), *_by_level(view, known)]
    most: dict[Hashable, tuple[float, float]] = {}
    for misfit in misfits:
        size = (misfit.surprise, misfit.value)
        most[misfit.task] = max(most.get(misfit.task, size), size)
    return sorted(misfits, key=lambda misfit: most[misfit.task], reverse=True)


def _by_probability(view: ModelView) -> Iterator[Misfit]:
    """Tasks with a high outlier probability in the model."""
    off = view.span.extra.get("outlier_probability", np.zeros(0))
    typical = float(np.median(view.off_span))
    if typical <= np.sqrt(NO_VARIATION) * view.off_span.max():  # rounding
        typical = 0.0
    if not (off > OFF).any():
        return
    fits = off <= OFF if (off <= OFF).any() else np.ones(len(off), dtype=bool)
    slopes = _Slopes.of(view, fits)
    levels, usual = _distances_of_levels(view)
    for t in np.flatnonzero(off > OFF):
        label, surprise = view.labels[t], float(-np.log10(max(1 - off[t], 1e-16)))
        j = slopes.most_different(int(t))
        if j is None:
            yield Misfit(label, "level", float(levels[t]), usual, surprise)
            continue
        away = slopes.away[t]
        if view.off_span[t] > np.sqrt(NO_VARIATION) * max(np.linalg.norm(away), levels[t]):
            value = float(view.off_span[t])
            yield Misfit(label, "coefficients", value, typical, surprise, view.names[j])
        else:
            values = float(away[j]), float(slopes.spread[j])
            yield Misfit(label, "slope", *values, surprise, view.names[j])


@dataclass(frozen=True)
class _Slopes:
    """How far the slopes of tasks, per standard deviation of the feature, are from the others'.

    A feature counts for a task if it varies within the task's rows, as far as these are known, and
    a task needs FEWEST_ROWS rows: other slopes are not known from the task's own responses.
    """

    view: ModelView
    away: np.ndarray  # (T, d) absolute differences from the medians of the other tasks
    spread: np.ndarray  # (d,) robust standard deviations of the other tasks
    far: np.ndarray  # (T, d) differences in standard deviations: of the others and of the estimate

    @classmethod
    def of(cls, view: ModelView, fits: np.ndarray) -> _Slopes:
        """The slopes of all tasks, compared with those of the tasks ``fits`` (T,)."""
        effects = view.span.coef * view.metric.deviation
        away = np.abs(effects - np.median(effects[fits], axis=0))
        spread = 1.4826 * np.median(away[fits], axis=0)
        rounding = np.sqrt(NO_VARIATION) * max(away.max(initial=0.0), np.finfo(float).tiny)
        scale = np.hypot(np.maximum(spread, rounding), _errors_of_slopes(view))
        return cls(view, away, spread, np.where(away > rounding, away / scale, 0.0))

    def most_different(self, t: int) -> int | None:
        """The feature in which task t differs most from the others; None if it does in none."""
        far, designs = self.far[t], self.view.designs
        if designs is not None and designs.n[t] > 0:
            if designs.n[t] < FEWEST_ROWS:
                return None
            deviation = self.view.metric.deviation
            gram = designs.gram(t, np.where(deviation > 0, deviation, 1.0))
            far = np.where(gram.diagonal() > NO_VARIATION * designs.n[t], far, 0.0)
        return int(far.argmax()) if far.any() else None


def _errors_of_slopes(view: ModelView) -> np.ndarray:
    """Standard errors of slopes per standard deviation of the feature, (T, d) or broadcast to it.

    They are those of the posterior distribution, or else those of features that vary as in all
    tasks.
    """
    if isinstance(view.span.uncertainty, Posterior):
        errors = view.span.uncertainty.coef_std[: len(view.labels)] * view.metric.deviation
        return np.where(np.isfinite(errors), errors, 0.0)
    errors = np.zeros((len(view.labels), 1))
    if view.rows is not None:
        ids, counts = view.rows.sizes
        errors[ids, 0] = (view.noise or float(not view.is_normal)) / np.sqrt(counts)
    return errors


def _distances_of_levels(view: ModelView) -> tuple[np.ndarray, float]:
    """How far the level of each task is from the median of all (T,), and what is usual."""
    if view.random_levels is None:
        return np.zeros(len(view.labels)), 0.0
    levels = view.random_levels[0][-1]
    away = np.abs(levels - np.median(levels))
    return away, 1.4826 * float(np.median(away))


def _by_span(view: ModelView) -> Iterator[Misfit]:
    """Tasks in which features outside the span explain far more than in other tasks."""
    from scipy.stats import f

    if not len(view.fits_off_span) or not view.noise:
        return
    task, _, outside, extra, left, spare = view.fits_off_span.T
    statistic = outside / extra / np.maximum(left / spare, np.finfo(float).tiny)
    chance = f.logsf(statistic, extra, spare)
    yield from _strange_tasks(view, "off the span", task.astype(int), statistic, chance)


def _by_noise(view: ModelView) -> Iterator[Misfit]:
    """Tasks with far more noise than the others, by fitted variances or else by residuals."""
    from scipy.stats import chi2

    noise = _fitted_noise(view)
    if noise is None and view.noise_squares is not None:
        ids, squares, degrees = (a[view.noise_squares[2] >= SPARE_ROWS] for a in view.noise_squares)
        noise = ids, squares / degrees, degrees
    if noise is None or len(noise[0]) < 3 or not view.noise:
        return
    ids, variance, degrees = noise
    typical = weighted_median(variance, degrees)  # of most rows, not of many tasks of few rows
    if typical > 0:
        chance = chi2.logsf(variance / typical * degrees, degrees)
        yield from _strange_tasks(view, "noise", ids, variance, chance, degrees)


def _fitted_noise(view: ModelView) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Codes, variances and degrees of freedom of all tasks, if each has its own in the model."""
    variance, uncertainty = view.span.noise_variance, view.span.uncertainty
    if variance is None or not np.isfinite(variance).all() or not np.ptp(variance):
        return None
    degrees = None if uncertainty is None else uncertainty.degrees
    if isinstance(uncertainty, Posterior):
        degrees = uncertainty.noise_degrees
    if degrees is None or not (degrees > 0).all():
        return None
    return np.arange(len(variance)), variance, degrees[: len(variance)]


def rows_would_tell(view: ModelView) -> bool:
    """Whether the rows of the fit would show more tasks that do not fit than the model alone."""
    if (view.rows is not None and view.rows.y is not None) or view.span.extra.get("uses_offset"):
        return False
    return not view.is_population or (view.is_normal and _fitted_noise(view) is None)


def _by_place(view: ModelView, known: Collection[Hashable]) -> Iterator[Misfit]:
    """Tasks far from the others along a shared direction, or else in a slope that varies.

    The tasks ``known`` are known to differ, and are left out. What is far is measured in standard
    deviations of the other tasks' places, from their median absolute deviation, and of the error of
    the task's own place.
    """
    from scipy.stats import norm

    fits = np.array([label not in known for label in view.labels])
    noise = view.noise or float(not view.is_normal)
    shrunk = view.is_population  # and others are as uncertain as the rows of a task are few
    if fits.sum() < max(FEWEST_PLACES, view.rank or 0) or not (noise and (shrunk or view.rows)):
        return
    if view.rank:
        what, places = "place", view.directions.places
    elif shrunk:
        what, varying = "slope", np.flatnonzero(view.span.extra.get("slope_std", np.zeros(0)))
        mean = 0.0 if view.span.mean_coef is None else view.span.mean_coef
        places = ((view.span.coef - mean) * view.metric.deviation)[:, varying]
    else:
        return
    middle = np.median(places[fits], axis=0)
    spread = 1.4826 * np.median(np.abs(places[fits] - middle), axis=0)
    error = np.zeros(len(places))
    if view.rows is not None and not shrunk:
        ids, counts = view.rows.sizes
        error[ids] = noise / np.sqrt(counts)  # of a place that is not shrunk
    scale = np.sqrt(np.maximum(spread, LEAST_PLACE * noise) ** 2 + error[:, None] ** 2)
    away = np.abs(places - middle)
    far = away / scale * fits[:, None]
    odd = far.max(axis=1, initial=0.0) > FAR
    if odd.sum() > MOST_STRANGE * fits.sum():  # so many are a second kind of task, not outliers
        return
    slopes = _Slopes.of(view, fits)
    for t in np.flatnonzero(odd):
        j, feature = int(far[t].argmax()), slopes.most_different(int(t))
        if feature is not None:
            surprise = float(-norm.logsf(min(far[t, j], 1e3)) / np.log(10))
            values = float(away[t, j]), float(spread[j])
            yield Misfit(view.labels[t], what, *values, surprise, view.names[feature])


def _by_level(view: ModelView, known: Collection[Hashable]) -> Iterator[Misfit]:
    """Tasks whose random intercepts are far from the others', but for the tasks ``known``.

    What is far is measured in standard deviations of such estimates under the model, times those of
    the other tasks. Classes and counts of few rows give only few different levels, most of them
    equal: there the others do not count as closer together than the model says.
    """
    from scipy.stats import norm

    if view.random_levels is None:
        return
    levels, expected = view.random_levels
    fits = np.array([label not in known for label in view.labels])
    largest = expected.max(axis=1, keepdims=True)
    if fits.sum() < FEWEST_PLACES or not largest.all():
        return
    unit = np.sqrt(np.maximum(expected, LEAST_LEVEL * largest))
    away = np.abs(levels - np.median(levels[:, fits], axis=1, keepdims=True))
    spread = 1.4826 * np.median((away / unit)[:, fits], axis=1, keepdims=True)
    if not view.is_normal:
        spread = np.maximum(spread, 1.0)
    # A slope that differs makes a level differ far from the rows: it is odd if it is at both.
    far = away / np.maximum(spread * unit, LEAST_PLACE * (view.noise or 0.0))
    far = far.min(axis=0) * fits
    odd = far > FAR
    if odd.sum() > MOST_STRANGE * fits.sum():  # so many are a second kind of task, not outliers
        return
    typical = 1.4826 * float(np.median(away[-1, fits]))
    for i in np.flatnonzero(odd):
        surprise = float(-norm.logsf(min(far[i], 1e3)) / np.log(10))
        yield Misfit(view.labels[i], "level", float(away[-1, i]), typical, surprise)


def weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    """The median of values (n,), each counted as often as its weight (n,) says."""
    order = np.argsort(values)
    values, below = values[order], np.cumsum(weights[order])
    first = int(np.searchsorted(below, below[-1] / 2))
    last = int(np.searchsorted(below, below[-1] / 2, side="right"))
    return float((values[first] + values[min(last, len(values) - 1)]) / 2)


def _strange_tasks(
    view: ModelView, what: str, tasks: np.ndarray, values: np.ndarray, chance: np.ndarray,
    weights: np.ndarray | None = None,
) -> Iterator[Misfit]:  # fmt: skip
    """Tasks whose variances are far above the others' and, by log p-values, not due to chance.

    Both conditions are needed: in real tables every task fails a strict test, and among few tasks
    one is always the largest. Tasks count by their ``weights`` (n,), such as numbers of rows, and
    those that have most of the weight are not strange.
    """
    if len(values) < 3:
        return
    weights = np.ones(len(values)) if weights is None else weights
    logs = np.log(np.maximum(values, np.finfo(float).tiny))
    middle = weighted_median(logs, weights)
    spread = 1.4826 * weighted_median(np.abs(logs - middle), weights)
    far = logs - middle > STRANGE * max(spread, LEAST_SPREAD)
    far &= chance < np.log(CHANCE / len(view.labels))
    # So many are a second kind of task, not outliers.
    if far.mean() > MOST_STRANGE or weights[far].sum() > MOST_ROWS * weights.sum():
        return
    typical = float(np.sqrt(weighted_median(values, weights)))
    for i in np.flatnonzero(far):
        surprise = float(-chance[i] / np.log(10))
        yield Misfit(view.labels[tasks[i]], what, float(np.sqrt(values[i])), typical, surprise)
