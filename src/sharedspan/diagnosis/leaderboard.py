"""The ranking of methods by their test errors, and the choice among them.

Errors of two methods on the same rows are correlated, so they are compared task by task, by the
rule of the report (changes.py and verdict.py): methods tie unless their difference is clear.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from sharedspan.diagnosis.changes import compared
from sharedspan.diagnosis.compared_methods import (
    ADAPTIVE,
    BASELINES_COMPARED,
    SIMPLEST_FIRST,
    adaptive_methods,
    has_intervals,
    method_in_words,
)
from sharedspan.diagnosis.losses import Loss, loss_of
from sharedspan.diagnosis.split_runs import Runs
from sharedspan.diagnosis.text import count, listed
from sharedspan.diagnosis.verdict import (
    CLOSE,
    Gain,
    SharingVerdict,
    gain_between,
    sharing_verdict,
    unstable_words,
    where_unstable,
)
from sharedspan.families import Family, Gaussian

SAME = 1e-6  # difference of predictions, relative to their standard deviation, that is rounding
DIGITS = 1e-12  # the same relative to their size
FAR_OFF = 10  # times the loss of the best method, from which a method did not generalise
MOST_TIMES = 1000  # of the loss of the best method that are printed
LARGE = 1e6  # from which numbers are shown with an exponent
NEAR = 0.1  # share of the lowest loss by which that of a recommended method may be larger


@dataclass(frozen=True)
class Entry:
    """One line of the leaderboard; a number that does not exist is None."""

    method: str
    rank: int | None  # 1 is the best; methods that are equal share it, a failed method has none
    rmse: float | None  # over the held-out rows of all splits
    difference: float | None  # of the loss from the best method's
    standard_error: float | None  # of this difference by the spread over tasks; None with few tasks
    seconds: float | None  # mean time of a fit
    failure: str | None  # why the method failed
    note: str | None  # the warnings of its fits
    rmse_per_split: tuple[float, ...]
    # Other scores, for classes and counts: their loss over all held-out rows, which takes the place
    # of the RMSE, and for classes means over splits of AUC and Brier score.
    scores: Mapping[str, float] = field(default_factory=dict)
    loss_per_split: tuple[float, ...] = ()  # equal to rmse_per_split unless there are scores
    equal_to: str | None = None  # the method of another entry, which has the same predictions
    unstable: str | None = None  # where most of the loss of an unstable method is
    unconverged: str | None = None  # in how many splits scikit-learn's fit did not converge
    task_losses: np.ndarray | None = field(default=None, repr=False, compare=False)  # (T,) sums

    def cells(self, others: Sequence[str] = (), label: str = "") -> tuple[str, ...]:
        """The entry as text: rank, method, loss, difference with its standard error, seconds.

        ``others`` are further scores, between the loss and the difference; ``label`` is written
        in the place of the method.
        """
        loss = next(iter(self.scores.values()), self.rmse)
        rank, shown, seconds = (
            "-" if value is None else in_style(value)
            for value, in_style in (
                (self.rank, str),
                (loss, _five_digits),
                (self.seconds, _seconds),
            )
        )
        more = (f"{self.scores[name]:#.4g}" if name in self.scores else "-" for name in others)
        difference = "best" if self.rank == 1 else self._difference_with_error()
        if self.is_far_off:
            shown = "far above" if _loss(self) >= LARGE else shown
            difference = self._times_the_best()
        elif self.unstable:
            difference += ", unstable"
        if self.unconverged:
            difference += ", not converged"
        return rank, label or self.method, shown, *more, difference, seconds

    @property
    def is_far_off(self) -> bool:
        """Whether the loss is many times that of the best method."""
        if self.rank == 1 or self.difference is None:
            return False
        return _loss(self) > FAR_OFF * max(_loss(self) - self.difference, 0.0)

    def _times_the_best(self) -> str:
        """The loss as a multiple of that of the best method, rounded, and bounded."""
        best = _loss(self) - (self.difference or 0.0)
        if not _loss(self) < MOST_TIMES * best:
            return f"over {MOST_TIMES:,} times the best"
        return f"{_loss(self) / best:.0f} times the best"

    def _difference_with_error(self) -> str:
        """The difference and its error, both rounded to the second digit of the error."""
        if self.difference is None:
            return "-"
        if self.standard_error is None or not self.standard_error > 0:
            return f"{self.difference:+.3g}"
        decimals = max(1 - math.floor(math.log10(self.standard_error)), 0)
        if decimals > 6 or max(abs(self.difference), self.standard_error) >= LARGE:
            return f"{self.difference:+.2g} ± {self.standard_error:.1g}"
        return f"{self.difference:+,.{decimals}f} ± {self.standard_error:,.{decimals}f}"


def _loss(entry: Entry) -> float:
    """The loss of an entry by which methods are ranked."""
    return float(next(iter(entry.scores.values()), entry.rmse or 0.0))


def _five_digits(value: float) -> str:
    if not 1e3 <= abs(value) < LARGE:
        return f"{value:#.5g}"
    return f"{value:,.{max(4 - math.floor(math.log10(abs(value))), 0)}f}"


def _seconds(value: float) -> str:
    return f"{value:.2f}"


def leaderboard(runs: Mapping[str, Runs], adaptive: Sequence[str] = ADAPTIVE) -> tuple[Entry, ...]:
    """Entries sorted by their loss over all held-out rows, the failed methods last."""
    mean = {name: run.mean_loss for name, run in runs.items() if run.error is None}
    equal = _equal_methods({name: run for name, run in runs.items() if not run.failure}, adaptive)
    ranked = sorted(equal, key=lambda name: (mean[equal[name]], equal[name], name != equal[name]))
    leaders = list(dict.fromkeys(equal[name] for name in ranked))
    entries = []
    for name in [*ranked, *(name for name in runs if name not in ranked)]:
        run, difference, error, unstable = runs[name], None, None, None
        if ranked and name in mean:
            best = runs[ranked[0]]
            assert run.task_losses is not None
            assert best.task_losses is not None
            difference = mean[name] - mean[ranked[0]]
            change = compared(run.task_losses, best.task_losses, run.kind)
            if math.isfinite(change.standard_error):
                error = change.standard_error * mean[ranked[0]]
            unstable = _unstable(run.task_losses, best.task_losses)
        entry = Entry(
            method=name,
            rank=leaders.index(equal[name]) + 1 if name in equal else None,
            rmse=_rmse(run) if name in mean else None,
            difference=difference,
            standard_error=error,
            seconds=float(np.mean(run.seconds)) if run.seconds else None,
            failure=run.failure,
            note="; ".join(_distinct(run.warned)) or None,
            rmse_per_split=tuple(run.rmse) if name in mean else (),
            scores=_scores(run) if name in mean else {},
            loss_per_split=tuple(run.loss) if name in mean else (),
            equal_to=equal[name] if equal.get(name, name) != name else None,
            unstable=unstable,
            unconverged=_stopped(run),
            task_losses=run.task_losses if name in mean else None,
        )
        entries.append(entry)
    return tuple(entries)


def _distinct(messages: Sequence[str]) -> list[str]:
    """One of each of the messages that differ only in numbers and in the names that they quote."""
    kinds: dict[str, str] = {}
    for text in messages:
        kinds.setdefault(re.sub(r"(?<!\w)'.*?'(?!\w)|[\d.]+", "", text), text)
    return list(kinds.values())


def _stopped(run: Runs) -> str | None:
    """In how many splits scikit-learn's fit did not converge."""
    if not run.n_stopped:
        return None
    return f"in {run.n_stopped} of {count(len(run.rmse), 'split')}"


def _rmse(run: Runs) -> float:
    """The root mean squared error over the splits of a method."""
    return run.mean_loss if run.kind.is_root else float(np.sqrt(np.mean(np.square(run.rmse))))


def _scores(run: Runs) -> dict[str, float]:
    """The loss over all held-out rows, and means of other scores over the splits that have them."""
    names = dict.fromkeys(name for each in run.scores for name in each)
    means = {name: float(np.mean([s[name] for s in run.scores if name in s])) for name in names}
    return means | {name: run.mean_loss for name in names if name == run.kind.name}


def _unstable(losses: np.ndarray, best: np.ndarray) -> str | None:
    """Where most of the loss of an unstable method is."""
    worst = where_unstable(losses, best)
    return unstable_words(len(worst), len(losses)) if len(worst) else None


def _equal_methods(runs: Mapping[str, Runs], adaptive: Sequence[str]) -> dict[str, str]:
    """For each method the preferred one of those with the same predictions."""
    leaders: dict[str, str] = {}
    for name in sorted(runs, key=partial(_preference, adaptive)):
        same = (other for other in leaders.values() if _same_means(runs[name], runs[other]))
        leaders[name] = next(same, name)
    return leaders


def _same_means(one: Runs, other: Runs) -> bool:
    """Whether two methods have the same predictions in all splits, but for rounding."""
    if not one.means or len(one.means) != len(other.means):
        return False
    return all(
        float(np.abs(a - b).max()) <= SAME * float(b.std()) + DIGITS * float(np.abs(b).max())
        for a, b in zip(one.means, other.means, strict=True)
    )


def _preference(adaptive: Sequence[str], name: str) -> int:
    """The place of a method among those that are equally good: adaptive ones, then simple ones."""
    return [*adaptive, *SIMPLEST_FIRST, name].index(name)


class Recommendation(NamedTuple):
    """The method to use, the reason in sentences, and the verdict on sharing if there is one."""

    method: str | None
    advice: str
    sharing: SharingVerdict | None = None


def recommend(entries: Sequence[Entry], *, family: Family | None = None) -> Recommendation:
    """The method to use, by the rule of the report (verdict.py).

    The rule is applied to the adaptive model, or without one to the best method that is no
    baseline. Another method is recommended only if it is clearly better than what the rule gives,
    or if its error is lower by a tenth.
    """
    family = Gaussian() if family is None else family
    kind, adaptive = loss_of(family), adaptive_methods(family)
    ranked = [entry for entry in entries if entry.rank is not None and entry.equal_to is None]
    if not ranked:
        return Recommendation(
            None, "No estimator could be fitted to this table: the reasons are above."
        )
    shares = [entry for entry in ranked if entry.method not in BASELINES_COMPARED]
    lead = next((e for e in shares if e.method in adaptive), next(iter(shares), ranked[0]))
    method, sharing = _by_the_rule(lead, entries, kind, adaptive)
    chosen = next(entry for entry in entries if entry.method == method)
    gains = {entry.method: _gain("", entry, chosen, kind) for entry in shares}
    better = [e for e in shares if gains[e.method].sign > 0 or gains[e.method].share > NEAR]
    if better and better[0] is not lead:
        method, sharing = _by_the_rule(better[0], entries, kind, adaptive)
    why = _why(method, ranked, kind, adaptive)
    use = method_in_words(method, family)
    if sharing is None:
        advice = f"Use {use}: its test error is {why}."
    else:
        whose = "Its test error"
        if method not in BASELINES_COMPARED and sharing.simpler:
            simpler = next(
                e.method for e in entries
                if e.rank is not None and BASELINES_COMPARED.get(e.method) == sharing.simpler
            )  # fmt: skip
            whose = f"The test error of {method}"
            use = f"{use}, or {method_in_words(simpler, family)}, {which_is_simpler(simpler)}"
        sentence = sharing.sentence(f"use {use}").replace("\u00a0", " ")  # for terminals
        advice = f"{sentence} {whose} is {why}."
    if not has_intervals(method):
        advice += " It has no prediction intervals."
    return Recommendation(method, advice, sharing)


def which_is_simpler(method: str) -> str:
    """What is said of a simpler method that is as good, with what it lacks."""
    return f"which is simpler{'' if has_intervals(method) else ' but has no prediction intervals'}"


def _by_the_rule(
    lead: Entry, entries: Sequence[Entry], kind: Loss, adaptive: Sequence[str]
) -> tuple[str, SharingVerdict | None]:
    """The method that the verdict on ``lead`` leads to, and the verdict."""
    sharing = _verdict(lead, entries, kind)
    if sharing is None:
        simple = [e for e in entries if e.rank is not None and e.method in BASELINES_COMPARED]
        gains = {e.method: _gain("", lead, e, kind) for e in simple}
        as_good = [n for n, gain in gains.items() if gain.sign < 1 and gain.share <= CLOSE]
        return min((*as_good, lead.method), key=partial(_preference, ())), None
    instead = sharing.instead or (sharing.simpler if lead.method not in adaptive else "")
    named = (e.method for e in entries if e.rank is not None)
    return next((n for n in named if BASELINES_COMPARED.get(n) == instead), lead.method), sharing


def _why(method: str, ranked: Sequence[Entry], kind: Loss, adaptive: Sequence[str]) -> str:
    """How the error of a method compares with those of the others."""
    best = ranked[0]
    tied = [e for e in ranked if e is best or _gain("", e, best, kind).sign == 0]
    near = [e.method for e in tied if (e.difference or 0.0) <= NEAR * abs(_loss(best))]
    if method == best.method:
        others = [name for name in near if name != method]
        if len(tied) == 1:
            return "clearly the lowest"
        return f"the lowest{f', but not clearly below that of {listed(others)}' if others else ''}"
    reason = ""
    if method in adaptive:
        reason = ", and it adapts to what the tasks share"
    elif _preference((), method) < _preference((), best.method):
        reason = ", and it is simpler"
    far = "not clearly above" if method in [e.method for e in tied] else "close to"
    return f"{far} the lowest ({best.method}){reason}"


def _gain(against: str, entry: Entry, other: Entry, kind: Loss) -> Gain:
    """The gain of one entry against another."""
    assert entry.task_losses is not None
    assert other.task_losses is not None
    return gain_between(against, entry.task_losses, other.task_losses, kind)


def _verdict(entry: Entry, entries: Sequence[Entry], kind: Loss) -> SharingVerdict | None:
    """The verdict on a method by its gains against simpler ones; None without one to compare."""
    if entry.method in BASELINES_COMPARED:
        return None
    gains: dict[str, Gain] = {}
    for other in entries:
        against = BASELINES_COMPARED.get(other.method)
        if against is not None and other.rank is not None:  # against the best of each kind
            gains.setdefault(against, _gain(against, entry, other, kind))
    if not gains:
        return None
    error = "error" if kind.is_root else kind.words
    return sharing_verdict(gains.values(), error=error)
