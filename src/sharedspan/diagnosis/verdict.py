"""Whether sharing helps, and which model to use: errors of a model against those of simple ones.

The simple models are one that ignores tasks, common slopes and separate models. A difference of
errors is clear if its 95 % interval by the spread over tasks excludes zero, and with too few tasks
for an interval if all of them have it. A simpler model is as good as this one if it is not clearly
worse and its error is within ``CLOSE`` of the lowest. ``ss.compare`` and the report have this one
rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sharedspan.diagnosis.changes import compared
from sharedspan.diagnosis.holdout_errors import HoldoutErrors
from sharedspan.diagnosis.losses import Loss
from sharedspan.diagnosis.text import count, listed, percent

AGAINST = {  # in the order of a sentence
    "ignored": "one model ignoring tasks",
    "pooled": "common slopes",
    "separate": "separate models",
}
# Added where the name stands for the first time.
INTERCEPTS = {"pooled": " (with an intercept for each {})"}
ERRORS = 2  # standard errors on either side of a difference that has no interval
LEAST = 0.001  # share of an error below which a difference is of no use
CLOSE = 0.02  # share of an error up to which a simpler model may be worse and is still as good
FAR = 0.1  # share of an error by which a simple model is better, however uncertain
SIMPLER = ("ignored", "pooled")  # that are named if they are as good, the simplest first
MOST = 0.5  # share of a gain, or of an error, that is most of it
FEW_TASKS = 0.05  # share of the tasks that make up most of the loss of an unstable method,
FEW_OF_BEST = 0.25  # and less than this share of the loss of the best method
FEW_GAIN = 0.1  # share of the tasks that are few to have most of a difference of errors


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
    n_most: int = 0  # number of tasks that have most of a difference, if these are few
    n_tasks: int = 0

    @property
    def sign(self) -> int:
        """1 for a smaller error, -1 for a larger one, 0 if the difference is not clear."""
        reach = ERRORS * self.standard_error
        low, high = self.interval or (self.share - reach, self.share + reach)
        clear = self.in_all if self.few else low > 0 or high < 0
        return int(math.copysign(1, self.share)) if clear and abs(self.share) >= LEAST else 0


@dataclass(frozen=True)
class SharingVerdict:
    """Whether sharing helps, the sentence that says so, and which model to use.

    ``outcome`` is "gain" if the error is smaller than that of a simpler model and larger than
    that of none, "loss" if it is larger than that of one, and otherwise "even". If one model that
    ignores the tasks is as good, it is "even", too.
    """

    outcome: Literal["gain", "even", "loss"]
    statement: str  # without its full stop
    gains: tuple[Gain, ...]
    instead: str = ""  # the simple model to use, a key of AGAINST, if not this one
    simpler: str = ""  # a simpler model that is as good

    def sentence(self, then: str = "") -> str:
        """The statement, and after a colon what follows from it, such as "use this model"."""
        if not then:
            return f"{self.statement}."
        if ":" in self.statement:
            return f"{self.statement}. {then[0].upper()}{then[1:]}."
        return f"{self.statement}: {then}."


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
    gains = sorted(gains, key=lambda gain: list(AGAINST).index(gain.against))
    best = min(gains, key=lambda gain: gain.share)  # against the simple model of the lowest error
    reach = min(best.share, 0.0) + CLOSE
    as_good = [g.against for g in gains if g.sign < 1 and g.share <= reach]
    # One model of all rows is a reference: the gain against it is told only if it is the least.
    told = tuple(g for g in gains if g.against != "ignored" or g is best or g.sign < 0)
    cuts, raises, even = ([g for g in told if g.sign == sign] for sign in (1, -1, 0))
    less = f"cuts the {error} {_sizes(cuts, names)}"
    more = f"raises the {error} {_sizes(raises, names)}"
    same = f"makes no clear difference against {' or '.join(names[g.against] for g in even)}"
    few = max((gain.few for gain in gains), default=0)
    end = f" ({few} tasks are too few for an interval)" if few else ""
    if raises:
        parts = [more, *[same] * bool(even), *[less] * bool(cuts)]
        begin = "Sharing does not help here. It"
        if best.against == "ignored":
            begin = "The tasks hardly differ. Sharing"
        return SharingVerdict("loss", f"{begin} {listed(parts)}{end}", told, best.against)
    instead = best.against if best.share < -FAR else ""
    named = next((key for key in SIMPLER if key in as_good and not instead), "")
    outcome: Literal["gain", "even"] = "gain" if cuts else "even"
    if named == "ignored":
        statement = "The tasks hardly differ: one model that ignores them predicts as well"
        outcome = "even"
    elif best.sign == 0 and (best.share > CLOSE or instead):
        large = [g for g in even if g.share * best.share > 0 and abs(g.share) > CLOSE]
        what = "cuts" if best.share > 0 else "raises"
        statement = f"Sharing {what} the {error} {_sizes(large, names)}, but {_chance(large)}"
        if cuts:
            statement += f"; it clearly cuts the {error} {_sizes(cuts, names)}"
        if instead:
            outcome = "even"
    elif cuts:
        statement = f"Sharing {less}{f', but {same}' if even else ''}"
    else:
        statement = f"Sharing {same}"
    return SharingVerdict(outcome, f"{statement}{end}", told, instead, named)


def _chance(gains: Sequence[Gain]) -> str:
    """That differences are not clear of chance, because of a few tasks if that is so."""
    one = len(gains) == 1
    if not all(gain.n_most for gain in gains):
        return f"{'the difference is' if one else 'these differences are'} not clear of chance"
    n = max(gain.n_most for gain in gains)
    verb = "accounts" if n == 1 else "account"
    return (
        f"{n:,} of {count(gains[0].n_tasks, 'task')} {verb} for most of that, so "
        f"{'the difference is' if one else 'these differences are'} not clear of chance"
    )


def _sizes(gains: Sequence[Gain], names: dict[str, str]) -> str:
    return listed(
        f"by {percent(abs(g.share))} against {names[g.against]}{_in_all(g.few if g.sign else 0)}"
        for g in gains
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


def gain_between(against: str, mine: np.ndarray, other: np.ndarray, loss: Loss) -> Gain:
    """The gain over all tasks by the sums of their losses, (T,) each."""
    change = compared(mine, other, loss)
    difference = other - mine if change.ratio < 1 else mine - other
    n_most = _n_most(np.maximum(difference, 0.0))
    n_most = n_most if n_most <= FEW_GAIN * len(mine) else 0
    gain = Gain(against, 1 - change.ratio, change.standard_error, n_most=n_most, n_tasks=len(mine))
    if change.bounded:
        return replace(gain, interval=(1 - change.high, 1 - change.low))
    agree, others = (change.gains, change.losses)[:: 1 if change.ratio < 1 else -1]
    few = max(change.n_tasks, 1)
    return replace(gain, standard_error=math.inf, few=few, in_all=agree == few and not others)


def _n_most(values: np.ndarray) -> int:
    """The smallest number of tasks that have most of the sum of values (T,), none negative."""
    largest = np.cumsum(np.sort(values)[::-1])
    return int(np.searchsorted(largest, MOST * largest[-1])) + 1


def where_unstable(losses: np.ndarray, best: np.ndarray) -> np.ndarray:
    """The tasks with most of a loss (T,), if they are few and the best method predicts them."""
    worst = np.argsort(-losses, kind="stable")[: _n_most(losses)]
    if len(worst) > FEW_TASKS * len(losses) or best[worst].sum() > FEW_OF_BEST * best.sum():
        return worst[:0]
    return worst


def unstable_words(n_worst: int, n_tasks: int) -> str:
    """Where most of the error of an unstable method is."""
    verb = "accounts" if n_worst == 1 else "account"
    return f"{n_worst:,} of {count(n_tasks, 'task')} {verb} for more than half of its error"


def holdout_gains(errors: HoldoutErrors) -> list[Gain]:
    """The gains of a model over all tasks, with intervals by the spread over tasks."""
    held = errors.rows > 0
    mine = errors.losses["model"][held]
    return [
        gain_between(name, mine, errors.losses[name][held], errors.loss)
        for name in errors.baselines
    ]
