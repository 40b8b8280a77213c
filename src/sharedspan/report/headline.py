"""The verdict at the head of the page, and the advice that follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sharedspan.diagnosis.calibration import INTERVAL_LEVELS
from sharedspan.diagnosis.compared_methods import POOLED, SEPARATE, how_to_use
from sharedspan.diagnosis.holdout_errors import BASELINES
from sharedspan.diagnosis.text import change, listed, percent, short
from sharedspan.diagnosis.verdict import SharingVerdict, sharing_verdict
from sharedspan.families import Counts
from sharedspan.report.facts import Facts

LEVEL = 0.95
FAR_FROM_LEVEL = 0.03  # difference of a coverage from its level that is worth a sentence
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
    statement = verdict.statement
    if facts.view.model.shares == "nothing":
        statement = statement.replace("Sharing", "One model per task", 1)
    bounds = [
        f"{change(one.low)} to {change(one.high)} against {facts.simpler[name]}"
        for name in (gain.against for gain in verdict.gains)
        if (one := facts.errors.change(name)).bounded
    ]
    basis = "Measured on rows held out of the fit"
    basis += f"; 95\u00a0% intervals of the change: {listed(bounds)}." if bounds else "."
    then = _what_to_do(facts, verdict)
    return Headline(verdict.outcome, f"{statement}: {then}.", basis)


def _verdict(facts: Facts) -> SharingVerdict | None:
    """The verdict by the errors on held-out rows; None if there is nothing to compare with."""
    if facts.errors is None or not facts.gains:
        return None
    error = "error" if facts.errors.loss.is_root else facts.errors.loss.words
    return sharing_verdict(
        facts.gains, error=error, words=facts.simpler, task=short(facts.task_name)
    )


def _what_to_do(facts: Facts, verdict: SharingVerdict) -> str:
    """What follows from the verdict, without a full stop."""
    even = [gain.against for gain in verdict.gains if gain.sign == 0]
    if verdict.outcome == "loss":
        assert facts.errors is not None
        losing = [gain.against for gain in verdict.gains if gain.sign < 0]
        return _use(facts, min(losing, key=facts.errors.error))
    if "pooled" not in even:
        return "keep this model"
    simpler = f"{_use(facts, 'pooled')}, which is simpler"
    if verdict.outcome == "even" and not facts.view.is_population:
        return simpler
    return f"keep this model, or {simpler}"


def _use(facts: Facts, baseline: str) -> str:
    """How to fit a simpler model."""
    if facts.view.is_normal:
        return f"use {BASELINES[baseline].estimator} (--estimator {BASELINES[baseline].estimator})"
    method = POOLED if baseline == "pooled" else SEPARATE
    return f"use {how_to_use(method, facts.view.family, is_coded=facts.columns is not None)}"


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
