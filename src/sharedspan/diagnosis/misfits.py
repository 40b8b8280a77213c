"""Tasks that do not fit: by the model's own word, by what lies off the span, by their noise."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np

from sharedspan.diagnosis.model_view import HARD, SPARE_ROWS, Look

OFF = 0.5  # probability from which a task is named an outlier
STRANGE = 4.0  # robust deviations from the other tasks beyond which one is named
LEAST_SPREAD = 0.1  # of log variances; less would name tasks for differences that do not matter
MOST_STRANGE = 0.25  # share of tasks
CHANCE = 0.01  # probability that any task at all is named by chance


@dataclass(frozen=True)
class Misfit:
    """One reason why a task does not fit.

    Values are in units of the response; those of "off the span" are what other features explain,
    by degree of freedom, in standard deviations of the task's own noise.
    """

    task: Hashable
    what: str  # "coefficients", "noise" or "off the span"
    value: float
    typical: float  # median over the tasks
    surprise: float  # -log10 of the probability by chance; for "coefficients" of being no outlier
    feature: str | None = None  # where coefficients differ most


def find_misfits(look: Look) -> list[Misfit]:
    """Tasks that do not fit, the most surprising first."""
    found = [*_off_by_probability(look), *_off_by_span(look), *_off_by_noise(look)]
    most: dict[Hashable, tuple[float, float]] = {}
    for misfit in found:
        size = (misfit.surprise, misfit.value)
        most[misfit.task] = max(most.get(misfit.task, size), size)
    return sorted(found, key=lambda misfit: most[misfit.task], reverse=True)


def _off_by_probability(look: Look) -> Iterator[Misfit]:
    """By the model's own word."""
    off = getattr(look.model, "outlier_probability_", np.zeros(0))
    typical = float(np.median(look.off_span))
    if typical <= np.sqrt(HARD) * look.off_span.max():  # rounding
        typical = 0.0
    for t in np.flatnonzero(off > OFF):
        yield Misfit(
            task=look.labels[t],
            what="coefficients",
            value=float(look.off_span[t]),
            typical=typical,
            surprise=float(-np.log10(max(1 - off[t], 1e-16))),
            feature=str(look.model.coef_names_[look.off_feature[t]]),
        )


def _off_by_span(look: Look) -> Iterator[Misfit]:
    """Tasks that other features explain, far beyond what the span leaves of the others."""
    from scipy.stats import f

    if not look.fits or not look.noise:
        return
    outside = np.array([fit.outside / fit.extra for fit in look.fits])
    own = np.array([fit.left / fit.spare for fit in look.fits])
    extra, spare = np.array([(fit.extra, fit.spare) for fit in look.fits]).T
    statistic = outside / np.maximum(own, np.finfo(float).tiny)
    chance = f.logsf(statistic, extra, spare)
    for i in strange(statistic, chance, len(look.labels)):
        yield Misfit(
            task=look.labels[look.fits[i].task],
            what="off the span",
            value=float(np.sqrt(statistic[i])),
            typical=float(np.sqrt(np.median(statistic))),
            surprise=float(-chance[i] / np.log(10)),
        )


def _off_by_noise(look: Look) -> Iterator[Misfit]:
    """Tasks with far more noise than the others: by residuals, or else as they were fitted."""
    from scipy.stats import chi2

    variance = np.asarray(getattr(look.model, "noise_variance_", np.zeros(0)))
    ids, chance = np.arange(len(variance)), None
    if look.noise_squares is not None:
        ids, squares, degrees = look.noise_squares
        spare = degrees >= SPARE_ROWS
        ids, degrees = ids[spare], degrees[spare]
        variance = squares[spare] / degrees
    if len(ids) < 3 or not look.noise or not np.median(variance) > 0:
        return
    if look.noise_squares is not None:
        chance = chi2.logsf(variance / np.median(variance) * degrees, degrees)
    for i in strange(variance, chance, len(look.labels)):
        yield Misfit(
            task=look.labels[ids[i]],
            what="noise",
            value=float(np.sqrt(variance[i])),
            typical=float(np.sqrt(np.median(variance))),
            surprise=STRANGE if chance is None else float(-chance[i] / np.log(10)),
        )


def strange(values: np.ndarray, chance: np.ndarray | None, n_tasks: int) -> np.ndarray:
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
