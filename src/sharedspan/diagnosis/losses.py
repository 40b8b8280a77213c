"""Losses of predicted means, by the family of the responses.

    normal   (y - m)^2, shown as its root mean (RMSE)
    binary   -y log m - (1 - y) log(1 - m), the log loss
    Poisson  2 [y log(y / m) - y + m], the Poisson deviance
    counts   2 [y log(y / m) - (y + 1) log((y + 1) / (m + 1))], the negative binomial deviance

Each is smallest on average if m is the mean, so models of different kinds can be compared. Counts
whose variance is larger than their mean are scored as those of variance m + m^2: their Poisson
deviance would be that of a few large counts. It is the same scale for all models, whatever
dispersion they estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sharedspan.families import Binomial, Counts, Family, Poisson

SMALLEST_SHARE = 1e-6  # a predicted probability of 0 or 1 would cost infinitely much
SMALLEST_MEAN = 1e-6  # relative to the mean count; a predicted mean of zero or less, the same


@dataclass(frozen=True)
class Loss:
    """The loss of each row, and its mean as it is shown."""

    name: str  # at the head of a table
    words: str  # in a sentence
    of_rows: Callable[[np.ndarray, np.ndarray], np.ndarray]  # of responses and means, (rows,)
    is_root: bool = False  # whether the root of the mean is shown

    def shown(self, mean: float) -> float:
        """The mean loss as it is shown."""
        return math.sqrt(mean) if self.is_root else mean

    def of(self, y: np.ndarray, mean: np.ndarray) -> float:
        """The loss over all rows as it is shown."""
        return self.shown(float(np.mean(self.of_rows(y, mean))))


def squared_error(y: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Squared errors, (rows,)."""
    with np.errstate(over="ignore"):
        return (y - mean) ** 2


def log_loss(y: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Minus the log likelihood of classes, or of shares y, (rows,)."""
    p = np.clip(mean, SMALLEST_SHARE, 1 - SMALLEST_SHARE)
    return -y * np.log(p) - (1 - y) * np.log1p(-p)


def poisson_deviance(y: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Deviances of counts whose variance is their mean, (rows,)."""
    from scipy.special import xlogy

    m = _positive(y, mean)
    return 2 * (xlogy(y, y / m) - y + m)


def negative_binomial_deviance(y: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Deviances of counts whose variance is m + m^2, (rows,)."""
    from scipy.special import xlogy

    m = _positive(y, mean)
    return 2 * (xlogy(y, y / m) - (y + 1) * (np.log1p(y) - np.log1p(m)))


def _positive(y: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Means of counts, none of them zero or less."""
    return np.maximum(mean, SMALLEST_MEAN * max(float(y.mean()), 1e-3))


SCORES = {  # what the scores are, in words
    "log loss": "minus the mean log of the probability of the class of a row",
    "AUC": "how often a row of class 1 has a larger probability than one of class 0",
    "Brier score": "mean squared difference of probability and class",
    "deviance": "mean deviance of counts from the predicted means",
}
RMSE = Loss("RMSE", "root mean squared error", squared_error, is_root=True)
LOG_LOSS = Loss("log loss", "log loss", log_loss)
POISSON = Loss("deviance", "mean Poisson deviance", poisson_deviance)
COUNTS = Loss("deviance", "mean negative binomial deviance", negative_binomial_deviance)


def loss_of(family: Family) -> Loss:
    """The loss by which models of a family are compared."""
    if isinstance(family, Binomial):
        return LOG_LOSS
    if isinstance(family, Counts):
        return POISSON if isinstance(family, Poisson) else COUNTS
    return RMSE


def score_names(family: Family) -> list[str]:
    """Names of the scores, the loss of the family first."""
    return [loss_of(family).name, *(["AUC", "Brier score"] * isinstance(family, Binomial))]


def scores(family: Family, y: np.ndarray, mean: np.ndarray) -> dict[str, float]:
    """All scores of predicted means, the loss of the family first; without those not defined."""
    loss = loss_of(family)
    values = {loss.name: loss.of(y, mean)}
    if isinstance(family, Binomial):
        values["AUC"] = auc(y, mean)
        values["Brier score"] = float(np.mean((y - np.clip(mean, 0, 1)) ** 2))
    return {name: value for name, value in values.items() if not math.isnan(value)}


def auc(y: np.ndarray, score: np.ndarray) -> float:
    """Probability that a row of class 1 has a larger score than one of class 0; NaN without both.

    Shares y count as fractions of rows of both classes.
    """
    order = np.argsort(score, kind="stable")
    y, score = y[order], score[order]
    start = np.flatnonzero(np.append(True, score[1:] != score[:-1]))
    ones, zeros = np.add.reduceat(y, start), np.add.reduceat(1 - y, start)
    if not (ones.sum() > 0 and zeros.sum() > 0):
        return math.nan
    below = np.cumsum(zeros) - zeros / 2
    return float(ones @ below / (ones.sum() * zeros.sum()))
