"""Tasks that do not fit, by outlier probabilities, by features off the span, or by noise."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np

from sharedspan.diagnosis.model_view import NO_VARIATION, SPARE_ROWS, ModelView

REASONS = {
    "coefficients": "coefficients off the common pattern",
    "off the span": "explained by features off the span, over its noise",
    "noise": "more noise than others",
}
OFF = 0.5  # probability from which a task is called an outlier
STRANGE = 4.0  # robust standard deviations from the other tasks beyond which a task is reported
LEAST_SPREAD = 0.1  # of log variances; a smaller one would report unimportant differences
MOST_STRANGE = 0.25  # share of tasks up to which they are reported
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
    typical: float  # median over the tasks
    surprise: float  # -log10 of the p-value, or of the probability of not being an outlier
    feature: str | None = None  # whose coefficient differs most

    @property
    def reason(self) -> str:
        """The reason as text, without the feature."""
        return REASONS[self.what]


def find_misfits(view: ModelView) -> list[Misfit]:
    """Tasks that do not fit, the most surprising first."""
    misfits = [*_by_probability(view), *_by_span(view), *_by_noise(view)]
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
    for t in np.flatnonzero(off > OFF):
        surprise, feature = -np.log10(max(1 - off[t], 1e-16)), view.names[view.off_feature[t]]
        value = float(view.off_span[t])
        yield Misfit(view.labels[t], "coefficients", value, typical, float(surprise), feature)


def _by_span(view: ModelView) -> Iterator[Misfit]:
    """Tasks for which features off the span explain far more than in other tasks."""
    from scipy.stats import f

    if not len(view.fits_off_span) or not view.noise:
        return
    task, _, outside, extra, left, spare = view.fits_off_span.T
    statistic = outside / extra / np.maximum(left / spare, np.finfo(float).tiny)
    chance = f.logsf(statistic, extra, spare)
    yield from _strange_tasks(view, "off the span", task.astype(int), statistic, chance)


def _by_noise(view: ModelView) -> Iterator[Misfit]:
    """Tasks with far more noise than the others, by residuals or else by the fitted variances."""
    from scipy.stats import chi2

    variance, squares = view.span.noise_variance, view.noise_squares
    variance = np.zeros(0) if variance is None else variance
    ids, chance = np.arange(len(variance)), None
    if squares is not None:
        spare = squares[2] >= SPARE_ROWS
        ids, left, degrees = (array[spare] for array in squares)
        variance = left / degrees
    if len(ids) < 3 or not view.noise or not np.median(variance) > 0:
        return
    if squares is not None:
        chance = chi2.logsf(variance / np.median(variance) * degrees, degrees)
    yield from _strange_tasks(view, "noise", ids, variance, chance)


def _strange_tasks(
    view: ModelView, what: str, tasks: np.ndarray, values: np.ndarray, chance: np.ndarray | None
) -> Iterator[Misfit]:
    """Tasks whose variances are far above the others' and, by log p-values, not due to chance.

    Both conditions are needed: in real tables every task fails a strict test, and among few tasks
    one is always the largest.
    """
    if len(values) < 3:
        return
    logs = np.log(np.maximum(values, np.finfo(float).tiny))
    middle = np.median(logs)
    spread = 1.4826 * np.median(np.abs(logs - middle))
    far = logs - middle > STRANGE * max(spread, LEAST_SPREAD)
    if chance is not None:
        far &= chance < np.log(CHANCE / len(view.labels))
    if far.mean() > MOST_STRANGE:  # so many are a second kind of task, not outliers
        return
    typical = float(np.sqrt(np.median(values)))
    for i in np.flatnonzero(far):
        surprise = STRANGE if chance is None else float(-chance[i] / np.log(10))
        yield Misfit(view.labels[tasks[i]], what, float(np.sqrt(values[i])), typical, surprise)
