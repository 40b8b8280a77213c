"""Held-out errors in words: how they were found, who wins, and what to do where the model loses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sharedspan.diagnosis.holdout_errors import FEWEST_ROWS, RIVALS, Change, Gains
from sharedspan.diagnosis.text import change, count, listed, number, percent, short
from sharedspan.report.facts import Facts

FITS = {
    "separate": "by one ridge regression per task",
    "pooled": "by pooled slopes with an intercept per task",
}
ESTIMATORS = {"separate": "PerTaskRegressor", "pooled": "PooledRegressor"}


def against(gains: Gains, rival: str) -> str:
    """The model against a rival, in words; where it is worse, they say so."""
    found, name = gains.change(rival), RIVALS[rival]
    if found.ratio >= 3:
        said = f"Its error on held-out rows is {number(found.ratio, 2)} times that of {name}"
    elif abs(found.ratio - 1) < 0.0005:
        said = f"Its error on held-out rows is that of {name}"
    else:
        way = "below" if found.ratio < 1 else "above"
        size = percent(abs(found.ratio - 1))
        said = f"Its error on held-out rows is {size} {way} that of {name}"
    return f"{said} ({interval(found)})" + ("." if found.clear else ", which may be chance.")


def interval(found: Change) -> str:
    """The interval of a change, or that there is none."""
    if not found.bounded:
        return "too few tasks for an interval"
    return f"95\u00a0% interval {change(found.low)} to {change(found.high)}"


def beaten(facts: Facts, gains: Gains) -> Iterator[str]:
    """What to do about a model that clearly loses to a simpler one."""
    ahead = [
        rival
        for rival in RIVALS
        if rival in gains.squares and gains.change(rival).ratio > 1 and gains.change(rival).clear
    ]
    if not ahead:
        return
    best = min(ahead, key=gains.rmse)
    found, other = gains.change(best), ESTIMATORS[best]
    more = f"{percent(found.ratio - 1)} larger"
    if found.ratio >= 3:
        more = f"{number(found.ratio, 2)} times as large"
    said = (
        f"On held-out rows {RIVALS[best]} {'do' if best == 'separate' else 'does'} better than "
        f"this model, whose error is {more} ({interval(found)}): use {other} (--estimator {other})"
    )
    if facts.kind != "AdaptiveSpanRegressor":
        said += ", or see whether AdaptiveSpanRegressor does better than both"
    yield said + "."


def gain_method(facts: Facts, gains: Gains) -> str:
    """How the errors were found."""
    fits = ["by the model" + (" with its rank as found" if _rank_was_found(facts) else "")]
    fits += [words for rival, words in FITS.items() if rival in gains.squares]
    return (
        "Each row was held out once, in four folds within tasks, and predicted by fits to the "
        f"others: {listed(fits)}."
    )


def gain_reading(facts: Facts, gains: Gains) -> Iterator[str]:
    """How to read the figures."""
    errors = np.concatenate([gains.task_rmse(name)[gains.rows > 0] for name in gains.squares])
    yield "Each point is a task" + ("; scales are logarithmic." if errors.min() > 0 else ".")
    yield "Below the line the model predicts it better."
    if any(gains.change(rival).bounded for rival in RIVALS if rival in gains.squares):
        yield "Intervals are by the spread over tasks."
    if _rank_was_found(facts):
        yield "The rank was found with all rows, which favours the model a little."


def _rank_was_found(facts: Facts) -> bool:
    """Whether rows decided it, and not the user."""
    return bool(facts.diagnosis.rank) and isinstance(getattr(facts.model, "rank", None), str)


def no_gains(facts: Facts) -> str:
    """Why there are no held-out errors."""
    if isinstance(facts.gains, str):
        return facts.gains
    return (
        "Give the rows (--data) to see how well the model predicts rows that it has not seen, "
        "against separate and pooled regression."
    )


def gains_notes(gains: Gains) -> Iterator[str]:
    """What to know of the held-out errors."""
    if gains.small:
        yield (
            f"{count(gains.small, 'task')} with fewer than {FEWEST_ROWS} rows "
            f"{'was' if gains.small == 1 else 'were'} fitted but not scored."
        )
    if gains.notes:
        times = "once" if len(gains.notes) == 1 else f"{len(gains.notes)} times"
        said = short(gains.notes[0], 300)
        yield f"While it was fitted to the folds the model warned {times}: {said}"
