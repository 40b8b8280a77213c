"""The verdict at the head of the page, and the advice that follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sharedspan.diagnosis.calibration import INTERVAL_LEVELS
from sharedspan.diagnosis.compared_methods import (
    IGNORED,
    POOLED,
    SEPARATE,
    has_intervals,
    method_in_words,
)
from sharedspan.diagnosis.holdout_errors import BASELINES
from sharedspan.diagnosis.leaderboard import which_is_simpler
from sharedspan.diagnosis.text import change, listed, percent, short
from sharedspan.diagnosis.verdict import (
    SharingVerdict,
    sharing_verdict,
    unstable_words,
    where_unstable,
)
from sharedspan.estimators import ESTIMATORS
from sharedspan.families import Counts
from sharedspan.report.facts import Facts

LEVEL = 0.95
FAR_FROM_LEVEL = 0.03  # difference of a coverage from its level that is worth a sentence
NO_INTERVALS = ", which has no prediction intervals"
FEWEST_COVERED = 200  # rows that this takes


class Headline(NamedTuple):
    """The verdict of the page: its colour, a sentence, and what the sentence rests on."""

    outcome: str  # "gain", "even", "loss", or "unknown"
    sentence: str
    basis: str = ""


def headline(facts: Facts) -> Headline:
    """The headline: whether sharing helps and what to do, or why this is not known."""
    if facts.errors is None:
        why = facts.no_errors or "Give the rows (--data), or X, y and task, to measure it."
        if facts.nothing_to_predict:
            return Headline("unknown", facts.no_errors)
        return Headline("unknown", "Whether sharing helps is not known.", why)
    verdict = _verdict(facts)
    if verdict is None:
        return Headline("unknown", "There is no simpler model to compare this one with.")
    said = verdict.sentence(_what_to_do(facts, verdict))
    if facts.view.model.shares == "nothing":
        said = said.replace("Sharing", "One model per task", 1)
    if where := _unstable(facts):
        said = f"{said} This model is unstable on these rows: {where}."
    bounds = [
        f"{change(one.low)} to {change(one.high)} against {facts.simpler[name]}"
        for name in (gain.against for gain in verdict.gains)
        if (one := facts.errors.change(name)).bounded
    ]
    basis = "Measured on rows held out of the fit"
    basis += f"; 95\u00a0% intervals of the change: {listed(bounds)}." if bounds else "."
    return Headline(verdict.outcome, said, basis)


def _verdict(facts: Facts) -> SharingVerdict | None:
    """The verdict by the errors on held-out rows; None if there is nothing to compare with."""
    if facts.errors is None or not facts.gains:
        return None
    error = "error" if facts.errors.loss.is_root else facts.errors.loss.words
    return sharing_verdict(
        facts.gains, error=error, words=facts.simpler, task=short(facts.task_name)
    )


def _unstable(facts: Facts) -> str:
    """The few tasks with most of the error of an unstable model, by name; empty if it is not."""
    errors = facts.errors
    assert errors is not None
    held = np.flatnonzero(errors.rows > 0)
    best = errors.losses[min(errors.losses, key=errors.error)]
    worst = where_unstable(errors.losses["model"][held], best[held])
    if not len(worst):
        return ""
    names = listed([short(facts.view.labels[held[t]]) for t in worst], 3)
    return f"{unstable_words(len(worst), len(held))} ({names})"


def _what_to_do(facts: Facts, verdict: SharingVerdict) -> str:
    """What follows from the verdict, without a full stop."""
    if verdict.instead:
        lacks = "" if has_intervals(_method(facts, verdict.instead)) else NO_INTERVALS
        return f"use {_named(facts, verdict.instead)}{lacks}"
    if not verdict.simpler:
        return "keep this model"
    simpler = _named(facts, verdict.simpler)
    simpler = f"use {simpler}, {which_is_simpler(_method(facts, verdict.simpler))}"
    return f"keep this model, or {simpler}" if facts.view.is_population else simpler


def _method(facts: Facts, baseline: str) -> str:
    """The method of a comparison that is this simple model."""
    if baseline == "ignored":
        return IGNORED
    if facts.view.is_normal:
        return BASELINES[baseline].estimator
    return POOLED if baseline == "pooled" else SEPARATE


def _named(facts: Facts, baseline: str) -> str:
    """What a simple model is called, with its option on the command line if it has one."""
    method = _method(facts, baseline)
    option = f" (--estimator {method})" if method in ESTIMATORS else ""
    return f"{method_in_words(method, facts.view.family)}{option}"


def advice(facts: Facts) -> Iterator[str]:
    """Advice on what to do, first of all if a simpler model predicts better."""
    verdict = _verdict(facts)
    if verdict is not None and verdict.outcome == "loss" and not facts.view.is_population:
        yield "See whether AdaptiveSpanRegressor does better: it shares only what the rows justify."
    yield from _advice_on_intervals(facts)
    yield from facts.advice


def _advice_on_intervals(facts: Facts) -> Iterator[str]:
    """Advice if prediction intervals contain clearly too few or too many held-out responses."""
    scored = None if facts.errors is None else facts.errors.scored
    if scored is None or scored.covered is None or isinstance(facts.view.family, Counts):
        return
    share = float(scored.covered[:, INTERVAL_LEVELS.index(LEVEL)].mean())
    if abs(share - LEVEL) < FAR_FROM_LEVEL or len(scored.covered) < FEWEST_COVERED:
        return
    what = "too narrow" if share < LEVEL else "too wide"
    remedy = ""
    if facts.view.is_population and facts.view.family.name == "gaussian":
        remedies = ["family='student_t' (--family student_t) if a few rows are far off"]
        if facts.view.span.extra.get("noise") != "per_task":
            remedies.insert(0, "noise='per_task' (--noise-per-task) if tasks differ in their noise")
        remedy = f": try {', or '.join(remedies)}"
    yield (
        f"95\u00a0% prediction intervals are {what}: they contain {percent(share)} of the "
        f"held-out responses{remedy}."
    )
