"""Whether sharing helps: errors of a model against common slopes and separate models.

A difference of errors is clear if its 95 % interval by the spread over tasks excludes zero, and
with too few tasks for an interval if all of them have it. ``ss.compare`` and the report have this
one rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sharedspan.diagnosis.changes import Change
from sharedspan.diagnosis.holdout_errors import HoldoutErrors
from sharedspan.diagnosis.text import listed, percent

AGAINST = {  # in the order of a sentence
    "ignored": "one model ignoring tasks",
    "pooled": "common slopes",
    "separate": "separate models",
}
# Added where the name stands for the first time.
INTERCEPTS = {"pooled": " (with an intercept for each {})"}
ERRORS = 2  # standard errors on either side of a difference that has no interval
LEAST = 0.001  # share of an error below which a difference is of no use


@dataclass(frozen=True)
class Gain:
    """The share by which a model cuts the error of a simpler one; below zero it raises it."""

    against: str  # the simpler model, a key of AGAINST
    share: float
    standard_error: float  # of the share; infinite if nothing is known about it
    # 95 % interval of the share where one is printed; None stands for two standard errors.
    interval: tuple[float, float] | None = None
    few: int = 0  # number of tasks, if these are too few for an interval
    in_all: bool = False  # whether all of these few have the difference

    @property
    def sign(self) -> int:
        """1 for a smaller error, -1 for a larger one, 0 if the difference is not clear."""
        reach = ERRORS * self.standard_error
        low, high = self.interval or (self.share - reach, self.share + reach)
        clear = self.in_all if self.few else low > 0 or high < 0
        return int(math.copysign(1, self.share)) if clear and abs(self.share) >= LEAST else 0


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
    gains: Iterable[Gain], *, error: str = "error", words: dict[str, str] | None = None,
    task: str = "task",
) -> SharingVerdict:  # fmt: skip
    """The verdict on a model that shares, by its gains against simpler ones.

    Parameters
    ----------
    gains : iterable of Gain
        At least one, against keys of ``AGAINST``.
    error : str, default="error"
        What the error is called, such as "log loss".
    words : dict of str, optional
        What the simpler models are called, by default as in ``AGAINST``.
    task : str, default="task"
        What a task is called, such as "patient".

    Returns
    -------
    SharingVerdict
    """
    names = AGAINST | (words or {})
    names = {key: name + INTERCEPTS.get(key, "").format(task) for key, name in names.items()}
    gains = tuple(sorted(gains, key=lambda gain: list(AGAINST).index(gain.against)))
    cuts, raises, even = ([g for g in gains if g.sign == sign] for sign in (1, -1, 0))
    less = f"cuts the {error} {_sizes(cuts, names)}"
    more = f"raises the {error} {_sizes(raises, names)}"
    same = f"makes no clear difference against {' or '.join(names[g.against] for g in even)}"
    few = max((gain.few for gain in gains), default=0)
    end = f" ({few} tasks are too few for an interval)" if few else ""
    if raises:
        parts = [more, *[same] * bool(even), *[less] * bool(cuts)]
        return SharingVerdict("loss", f"Sharing does not help here. It {listed(parts)}{end}", gains)
    if not cuts:
        return SharingVerdict("even", f"Sharing {same}{end}", gains)
    return SharingVerdict("gain", f"Sharing {less}{f', but {same}' if even else ''}{end}", gains)


def _sizes(gains: Sequence[Gain], names: dict[str, str]) -> str:
    return listed(
        f"by {percent(abs(g.share))} against {names[g.against]}{_in_all(g.few)}" for g in gains
    )


def _in_all(few: int) -> str:
    """That all of the few tasks have a difference."""
    return "" if not few else " in both tasks" if few == 2 else f" in all {few} tasks"


def paired_gain(against: str, model: Sequence[float], simple: Sequence[float]) -> Gain:
    """The gain by the errors of two methods on the same splits, at least two of them."""
    differences, mean = np.subtract(simple, model), float(np.mean(simple))
    if not mean > 0:
        return Gain(against, 0.0, 0.0)
    spread = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    return Gain(against, float(differences.mean()) / mean, spread / mean)


def gain_of(against: str, change: Change) -> Gain:
    """The gain by the change of the error over all tasks."""
    if change.bounded:
        interval = 1 - change.high, 1 - change.low
        return Gain(against, 1 - change.ratio, change.standard_error, interval)
    better = change.ratio < 1
    agree, others = (change.gains, change.losses)[:: 1 if better else -1]
    few = max(change.n_tasks, 1)
    return Gain(against, 1 - change.ratio, math.inf, few=few, in_all=agree == few and not others)


def holdout_gains(errors: HoldoutErrors) -> list[Gain]:
    """The gains of a model over all tasks, with intervals by the spread over tasks."""
    return [gain_of(name, errors.change(name)) for name in errors.baselines]
