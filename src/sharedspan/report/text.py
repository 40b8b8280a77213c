"""Sentences of the report: the fit, its errors, the choice of the rank, and advice.

Sentences that only depend on which facts are known are in the template.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sharedspan.diagnosis.holdout_errors import BASELINES, HoldoutErrors
from sharedspan.diagnosis.losses import SCORES
from sharedspan.diagnosis.text import count, format_number, listed, percent, short
from sharedspan.inference.rank_selection import RankPath
from sharedspan.report.facts import Facts

WHOLE = 0.995  # share from which it is shown as all


def summary(facts: Facts) -> Iterator[str]:
    """Describe the fitted model in a few sentences."""
    diagnosis = facts.diagnosis
    if facts.summary.formula:
        yield _formula_summary(facts)
        return
    features, tasks = count(diagnosis.n_features, "feature"), count(diagnosis.n_tasks, "task")
    rows = f" with {count(facts.n_rows, 'row')}" if facts.n_rows else ""
    family = "" if diagnosis.family == "gaussian" else f" ({diagnosis.family} responses)"
    yield f"{diagnosis.model}{family} predicts {facts.target} from {features}, in {tasks}{rows}."
    if facts.one_row_each:
        yield (
            "Each task has one row: differences between tasks cannot be distinguished from noise, "
            "and there are no errors and no intervals of single tasks."
        )
    elif facts.nothing_to_predict:
        yield facts.no_errors
    elif facts.same_slopes and facts.same_levels:
        yield "All tasks have the same slopes and the same intercept."
    elif facts.same_slopes:
        yield "All tasks have the same slopes, and differ only in their intercepts."
    elif facts.view.model.shares == "prior":
        yield (
            "Instead of a span it has a prior on all slopes: the fewer rows a task has, the "
            "nearer are its slopes to the mean of the prior."
        )
    elif diagnosis.rank:
        yield _shared(facts, diagnosis.rank)
    elif diagnosis.rank == 0:
        yield how_tasks_vary(facts.view.span.extra)


def _formula_summary(facts: Facts) -> str:
    """Describe the model of a formula: its response, fixed effects and groups."""
    summary = facts.summary
    effects = 0 if summary.fixed is None else len(summary.fixed.names)
    family = "" if facts.view.is_normal else f" ({summary.family} responses)"
    groups = listed(f"{count(n, 'group')} of {short(name)}" for name, n in summary.groups)
    rows = "" if summary.n_rows is None else f" with {count(summary.n_rows, 'row')}"
    return (
        f"{summary.title}{family}: predicts {facts.target} from {count(effects, 'fixed effect')} "
        f"and random effects of {groups}{rows}."
    )


def _shared(facts: Facts, rank: int) -> str:
    """Describe the number of shared directions and their share of the differences."""
    diagnosis = facts.diagnosis
    about_mean = facts.directions.about_mean
    what = "deviations from the common coefficients" if about_mean else "coefficients"
    sentence = f"The tasks’ {what} share {count(rank, 'direction')}"
    if diagnosis.span_share is not None and diagnosis.span_share_by != "construction":
        share = percent(diagnosis.span_share)
        verb = "accounts" if rank == 1 else "account"
        sentence += f", which {verb} for {share} of the variation of slopes between tasks"
        if diagnosis.span_share_by == "rows" and diagnosis.span_share < WHOLE:
            sentence += "; the model leaves out the rest"
    return sentence + "."


def numbers(facts: Facts) -> Iterator[tuple[str, str, str]]:
    """Name, value and explanation of each known number."""
    errors = facts.errors
    if errors is not None:
        words = "root mean squared error on rows held out, in units of the response"
        if facts.view.is_normal:
            yield "held-out error", format_number(errors.error("model")), words
        for score, number in facts.holdout_scores.items():
            yield f"held-out {score}", format_number(number), f"{SCORES[score]}, on rows held out"
        value, words = against_means(errors)
        yield "gain on means", value, f"{words}, on rows held out"
    degrees = facts.view.span.degrees_of_freedom
    if degrees is not None:
        words = "effective number of parameters, for all tasks together"
        yield "parameters", f"{degrees:,.0f}", words
    hidden = {"unlike features"} if not facts.directions.rank else set()
    if facts.one_row_each:
        hidden |= {"rank", "strongest over weakest", "in the span"}
        hidden |= {"noise", "explained over noise", "R² within tasks"}
    for name, value, words in facts.diagnosis.numbers("the response"):
        if name not in hidden:
            yield name, value, words


def against_means(errors: HoldoutErrors) -> tuple[str, str]:
    """How far the error is below that of the tasks' means: a share, and what it is a share of."""
    more = "more" if errors.explained < 0 else "less"
    what = "squared error" if errors.loss.is_root else errors.loss.words
    return percent(abs(errors.explained)), f"{more} {what} than the means of the tasks"


# Errors on held-out rows


def holdout_method(facts: Facts, errors: HoldoutErrors) -> str:
    """Explain how the errors were computed."""
    fits = ["by the model" + (" (its rank selected anew)" if _selected_rank(facts) else "")]
    for name in reversed(errors.baselines):
        fit = BASELINES[name].fit if facts.view.is_normal else BASELINES[name].glm
        fits.append(fit.format(facts.glm))
    return (
        "Each row was held out once, in four folds within tasks, and predicted by fits to the "
        f"other rows: {listed(fits)}."
    )


def holdout_reading(facts: Facts, errors: HoldoutErrors) -> Iterator[str]:
    """Explain how to read the figures."""
    smallest = min(errors.task_error(name)[errors.rows > 0].min() for name in errors.losses)
    yield "Each point is a task" + ("; scales are logarithmic." if smallest > 0 else ".")
    yield "Below the line this model predicts it better."
    if any(errors.change(name).bounded for name in errors.baselines):
        yield "Intervals are computed from the spread over tasks."


def _selected_rank(facts: Facts) -> bool:
    """Whether the rank was selected by the rows and not given by the user."""
    return bool(facts.diagnosis.rank) and isinstance(facts.view.params.get("rank"), str)


# The rank


def path_reason(path: RankPath) -> Iterator[str]:
    """Explain why this rank was selected among the ranks of a path."""
    if path.method == "auto":
        tied = [int(r) for r in path.ranks[path.difference <= path.standard_error]]
        yield "Ranks were compared by their error on held-out rows, in five folds within tasks."
        if tied == [path.rank]:
            yield f"Rank {path.rank} is better than all others by more than one standard error."
        else:
            yield (
                f"Ranks {listed([str(r) for r in tied])} are within one standard error of the "
                f"best; among these, {path.rank} has the largest marginal likelihood."
            )
    elif path.method == "evidence":
        rest = path.difference[path.ranks != path.rank]
        yield (
            f"Of all ranks that were tried, the rows are most probable under {path.rank} (it has "
            "the largest marginal likelihood)."
        )
        if len(rest):
            factor = format_number(float(np.exp(min(rest.min(), 700.0))), 2)
            yield f"Under the next best they are less probable by a factor of {factor}."
    else:
        yield (
            f"The rank counts the directions of separate fits that exceed the noise: "
            f"{count(path.rank, 'singular value')} of them above the threshold."
        )


def how_tasks_vary(extra: Any) -> str:
    """How coefficients vary in a model without shared directions, in a sentence."""
    if extra.get("slopes") == "given":
        return "The coefficients that vary between tasks are the random effects of the formula."
    if extra.get("slopes") == "full":
        return "All coefficients vary between tasks, with an unrestricted covariance."
    return (
        "Coefficients vary between tasks independently of each other, if at all: no pattern is "
        "shared."
    )


def candidates_reason(extra: Any, rank: int) -> Iterator[str]:
    """Explain why this rank was selected among candidate covariances."""
    tried = distinct_candidates(extra, rank)
    if extra["slopes"] == "given":
        yield f"The formula says how tasks vary; the rank is {rank}."
        return
    yield f"The fit compared {count(len(tried), 'description')} of how tasks vary, simple to rich."
    chosen = chosen_candidate(extra, rank)
    others = [row for row in tried if row is not chosen]
    if chosen is not None and others:
        best = max(others, key=lambda row: row["score"])
        ahead = float(chosen["score"] - best["score"])
        sentence = f"The one chosen has rank {rank} and variances of the kind “{chosen['slopes']}”"
        if ahead > 0:
            sentence += (
                f"; the score of the next best, rank {best['rank']} and “{best['slopes']}”, is "
                f"{format_number(ahead, 2)} lower"
            )
        elif ahead < 0:
            sentence += (
                f"; rank {best['rank']} and “{best['slopes']}” has a score that is "
                f"{format_number(-ahead, 2)} higher, but rows held out of the fit preferred the "
                "one chosen"
            )
        yield sentence + "."
    elif chosen is not None:
        yield f"There was only one to choose from: rank {rank}."


def distinct_candidates(extra: Any, rank: int) -> list[Any]:
    """The candidates ordered by score; of those of one kind the chosen one, or else the best."""
    chosen = chosen_candidate(extra, rank)
    ordered = sorted(extra["candidates"], key=lambda row: (row is not chosen, -row["score"]))
    kinds: dict[Any, Any] = {}
    for row in ordered:
        kinds.setdefault((row["slopes"], row["rank"], row.get("n_varying")), row)
    return sorted(kinds.values(), key=lambda row: -row["score"])


def chosen_candidate(extra: Any, rank: int) -> Any:
    """The candidate covariance of the fit, or None if it is not among those that were compared."""
    same = [
        row
        for row in extra["candidates"]
        if (row["slopes"], row["rank"]) == (extra["slopes"], rank)
    ]
    if not same:
        return None
    fitted = float(extra.get("log_likelihood", np.nan))
    return min(same, key=lambda row: (abs(row["log_likelihood"] - fitted), -row["score"]))
