"""The ranking of methods by their test errors, and the choice among them.

Errors of two methods on one split are correlated, so they are compared by their *paired*
difference: its mean over splits, and the standard error of that mean. Splits share rows, so this
standard error is a little too small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from sharedspan.diagnosis.compared_methods import ADAPTIVE, BASELINES_COMPARED, SIMPLEST_FIRST
from sharedspan.diagnosis.split_runs import Runs
from sharedspan.diagnosis.text import listed
from sharedspan.diagnosis.verdict import Gain, SharingVerdict, paired_gain, sharing_verdict

SAME = 1e-6  # difference of predictions, relative to their standard deviation, that is rounding
DIGITS = 1e-12  # the same relative to their size
FAR_OFF = 10  # times the loss of the best method, from which a method did not generalise
LARGE = 1e6  # from which numbers are shown with an exponent


@dataclass(frozen=True)
class Entry:
    """One line of the leaderboard; a number that does not exist is None."""

    method: str
    rank: int | None  # 1 is the best; methods that are equal share it, a failed method has none
    rmse: float | None  # mean over splits of the test RMSE
    difference: float | None  # mean over splits of the RMSE minus the best method's
    standard_error: float | None  # of this mean difference
    seconds: float | None  # mean time of a fit
    failure: str | None  # why the method failed
    note: str | None  # the warnings of its fits
    rmse_per_split: tuple[float, ...]
    # Means over splits of other scores, for classes and counts: their loss, which takes the place
    # of the RMSE, and for classes AUC and Brier score.
    scores: Mapping[str, float] = field(default_factory=dict)
    loss_per_split: tuple[float, ...] = ()  # equal to rmse_per_split unless there are scores
    equal_to: str | None = None  # the method of another entry, which has the same predictions

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
        if loss is not None and self.difference is not None:
            best = loss - self.difference
            difference += ", far off" if loss > FAR_OFF * max(best, 0.0) and self.rank != 1 else ""
        return rank, label or self.method, shown, *more, difference, seconds

    def _difference_with_error(self) -> str:
        """The difference and its error, both rounded to the second digit of the error."""
        if self.difference is None or self.standard_error is None:
            return "-"
        if not self.standard_error > 0:
            return f"{self.difference:+.3g}"
        decimals = max(1 - math.floor(math.log10(self.standard_error)), 0)
        if decimals > 6 or max(abs(self.difference), self.standard_error) >= LARGE:
            return f"{self.difference:+.2g} ± {self.standard_error:.1g}"
        return f"{self.difference:+,.{decimals}f} ± {self.standard_error:,.{decimals}f}"


def _five_digits(value: float) -> str:
    if not 1e3 <= abs(value) < LARGE:
        return f"{value:#.5g}"
    return f"{value:,.{max(4 - math.floor(math.log10(abs(value))), 0)}f}"


def _seconds(value: float) -> str:
    return f"{value:.2f}"


def leaderboard(runs: Mapping[str, Runs], adaptive: Sequence[str] = ADAPTIVE) -> tuple[Entry, ...]:
    """Entries by mean loss over all splits, the failed methods last."""
    mean = {name: float(np.mean(run.loss)) for name, run in runs.items() if run.error is None}
    equal = _equal_methods({name: run for name, run in runs.items() if not run.failure}, adaptive)
    ranked = sorted(equal, key=lambda name: (mean[equal[name]], equal[name], name != equal[name]))
    leaders = list(dict.fromkeys(equal[name] for name in ranked))
    entries = []
    for name in [*ranked, *(name for name in runs if name not in ranked)]:
        run, difference, error = runs[name], None, None
        if ranked and name in mean:
            differences = np.subtract(run.loss, runs[ranked[0]].loss)
            difference = float(differences.mean())
            error = float(differences.std(ddof=1) / math.sqrt(len(differences)))
        entry = Entry(
            method=name,
            rank=leaders.index(equal[name]) + 1 if name in equal else None,
            rmse=float(np.mean(run.rmse)) if name in mean else None,
            difference=difference,
            standard_error=error,
            seconds=float(np.mean(run.seconds)) if run.seconds else None,
            failure=run.failure,
            note="; ".join(dict.fromkeys(run.warned)) or None,
            rmse_per_split=tuple(run.rmse) if name in mean else (),
            scores=_mean_scores(run) if name in mean else {},
            loss_per_split=tuple(run.loss) if name in mean else (),
            equal_to=equal[name] if equal.get(name, name) != name else None,
        )
        entries.append(entry)
    return tuple(entries)


def _mean_scores(run: Runs) -> dict[str, float]:
    """Means of the scores over the splits that have them."""
    names = dict.fromkeys(name for each in run.scores for name in each)
    return {name: float(np.mean([s[name] for s in run.scores if name in s])) for name in names}


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


def recommend(
    entries: Sequence[Entry], adaptive: Sequence[str] = ADAPTIVE, *, error: str = "error"
) -> Recommendation:
    """The method to use: of those within one standard error of the best, the preferred one.

    This is an adaptive model, or else the simplest, but none that clearly has a larger error than
    one model for all or separate models. ``error`` is what the loss is called.
    """
    ranked = [entry for entry in entries if entry.rank is not None and entry.equal_to is None]
    if not ranked:
        return Recommendation(
            None, "No estimator could be fitted to this table: the reasons are above."
        )
    place = partial(_preference, adaptive)
    tied = [e.method for e in ranked if (e.difference or 0.0) <= (e.standard_error or 0.0)]
    verdicts = {e.method: _verdict(e, entries, error) for e in ranked}
    losing = [name for name, one in verdicts.items() if one is not None and one.outcome == "loss"]
    best = tied[0]
    method = min((name for name in tied if name == best or name not in losing), key=place)
    others = [name for name in tied if name != method]
    if not others:
        why = "the lowest, by more than one standard error"
    elif method != best:
        reason = "it adapts to what the tasks share" if method in adaptive else "it is simpler"
        why = f"within one standard error of the best ({best}), and {reason}"
    else:
        verb = "is" if len(others) == 1 else "are"
        why = f"the lowest, though {listed(others)} {verb} within one standard error of it"
    # If a baseline is the choice, the verdict is on the method that would be preferred to it.
    sharing = verdicts[method] or next(
        (verdicts[name] for name in sorted(verdicts, key=place) if verdicts[name]), None
    )
    if sharing is None:
        return Recommendation(method, f"Use {method}: its test error is {why}.")
    sentence = sharing.sentence(f"use {method}").replace("\u00a0", " ")  # for terminals
    advice = f"{sentence} Its test error is {why}."
    return Recommendation(method, advice, sharing)


def _verdict(entry: Entry, entries: Sequence[Entry], error: str) -> SharingVerdict | None:
    """The verdict on a method that shares; None for a baseline, and without one to compare."""
    if entry.method in BASELINES_COMPARED:
        return None
    gains: dict[str, Gain] = {}
    for other in entries:
        against = BASELINES_COMPARED.get(other.method)
        if against is not None and other.rank is not None:
            gain = paired_gain(against, entry.loss_per_split, other.loss_per_split)
            gains.setdefault(against, gain)  # against the best of them
    return sharing_verdict(gains.values(), error=error) if gains else None
