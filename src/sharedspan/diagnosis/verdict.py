"""Whether sharing helps: the errors of a model against one model for all and separate models.

A difference of errors counts only if its 95 % interval excludes zero: the interval that is printed
beside it, or else two standard errors on either side.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sharedspan.diagnosis.holdout_errors import HoldoutErrors
from sharedspan.diagnosis.text import listed, percent

AGAINST = {"pooled": "one model for all", "separate": "separate models"}  # the order of a sentence
ERRORS = 2  # standard errors on either side of a difference that has no interval
LEAST = 0.0005  # share of an error that is shown: the sentence has one digit after the point


@dataclass(frozen=True)
class Gain:
    """The share by which a model cuts the error of a simpler one; below zero it raises it."""

    against: str  # the simpler model, "pooled" or "separate"
    share: float
    standard_error: float  # of the share; infinite if nothing is known about it
    # 95 % interval of the share where one is printed; None stands for two standard errors.
    interval: tuple[float, float] | None = None

    @property
    def sign(self) -> int:
        """1 for a smaller error, -1 for a larger one, 0 if the interval contains no difference."""
        reach = ERRORS * self.standard_error
        low, high = self.interval or (self.share - reach, self.share + reach)
        clear = abs(self.share) >= LEAST and (low > 0 or high < 0)
        return int(math.copysign(1, self.share)) if clear else 0


@dataclass(frozen=True)
class SharingVerdict:
    """Whether sharing helps, and the sentence that says so.

    ``outcome`` is "gain" if the error is smaller than that of a simpler model and larger than
    that of none, "loss" if it is larger than that of one, and otherwise "even".
    """

    outcome: Literal["gain", "even", "loss"]
    statement: str  # without its full stop
    gains: tuple[Gain, ...]

    def sentence(self, then: str = "") -> str:
        """The statement, and after a colon what follows from it, such as "use this model"."""
        return f"{self.statement}: {then}." if then else f"{self.statement}."


def sharing_verdict(
    gains: Iterable[Gain], *, error: str = "error", words: dict[str, str] | None = None
) -> SharingVerdict:
    """The verdict on a model that shares, by its gains against one model for all and separate ones.

    Parameters
    ----------
    gains : iterable of Gain
        At least one, against "pooled" or "separate".
    error : str, default="error"
        What the error is called, such as "log loss".
    words : dict of str, optional
        What the simpler models are called: by default "one model for all", "separate models".

    Returns
    -------
    SharingVerdict
    """
    names = AGAINST | (words or {})
    gains = tuple(sorted(gains, key=lambda gain: list(AGAINST).index(gain.against)))
    cuts, raises, even = ([g for g in gains if g.sign == sign] for sign in (1, -1, 0))
    less = f"cuts the {error} {_sizes(cuts, names)}"
    more = f"raises the {error} {_sizes(raises, names)}"
    same = f"makes no clear difference against {' or '.join(names[g.against] for g in even)}"
    if raises:
        parts = [more, *[same] * bool(even), *[less] * bool(cuts)]
        return SharingVerdict("loss", f"Sharing does not help here. It {listed(parts)}", gains)
    if not cuts:
        return SharingVerdict("even", f"Sharing {same}", gains)
    return SharingVerdict("gain", f"Sharing {less}{f', but {same}' if even else ''}", gains)


def _sizes(gains: Sequence[Gain], names: dict[str, str]) -> str:
    return listed(f"by {percent(abs(g.share))} against {names[g.against]}" for g in gains)


def paired_gain(against: str, model: Sequence[float], simple: Sequence[float]) -> Gain:
    """The gain by the errors of two methods on the same splits, at least two of them."""
    differences, mean = np.subtract(simple, model), float(np.mean(simple))
    if not mean > 0:
        return Gain(against, 0.0, 0.0)
    spread = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    return Gain(against, float(differences.mean()) / mean, spread / mean)


def holdout_gains(errors: HoldoutErrors) -> list[Gain]:
    """The gains of a model over all tasks, with intervals by the spread over tasks."""
    changes = {name: errors.change(name) for name in errors.baselines}
    return [
        Gain(name, 1 - one.ratio, one.standard_error, (1 - one.high, 1 - one.low))
        for name, one in changes.items()
    ]
