"""The report in words: what was fitted and how well, why this rank, how the fit ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sharedspan.report.facts import Facts
from sharedspan.report.gains import FEWEST_ROWS, RIVALS, Gains
from sharedspan.report.wording import change, count, listed, number, percent, short


def headline(facts: Facts) -> Iterator[tuple[str, str]]:
    """A few large numbers and their words."""
    found, gains = facts.diagnosis, facts.gains
    yield f"{found.n_tasks:,}", "task fitted" if found.n_tasks == 1 else "tasks fitted together"
    if found.rank is not None:
        yield str(found.rank), "shared direction" if found.rank == 1 else "shared directions"
    if isinstance(gains, Gains):
        for rival in ("separate", "pooled"):
            if rival in gains.squares:
                yield change(gains.change(rival).ratio), f"held-out error against {RIVALS[rival]}"
        yield percent(gains.explained), "of the variance within tasks is predicted"
    elif found.noise is not None:
        yield number(found.noise), "standard deviation of the noise"
    odd = len(found.outliers)
    yield f"{odd:,}", "task does not fit" if odd == 1 else "tasks do not fit"


def summary(facts: Facts) -> Iterator[str]:
    """What was fitted and found, in a few sentences."""
    found, kind, d = facts.diagnosis, facts.kind, facts.diagnosis.n_features
    yield (
        f"{kind} regressed {facts.target} on {count(d, 'feature')} in "
        f"{count(found.n_tasks, 'task')}"
        + (f", from {count(facts.n_rows, 'row')}." if facts.n_rows else ".")
    )
    if found.rank:
        what = "deviations from the common coefficients" if facts.directions.about_mean else (
            "coefficients")  # fmt: skip
        share = found.span_share
        said = f"The tasks’ {what} share {count(found.rank, 'direction')}"
        if share is not None and found.span_share_by != "construction":
            hold = "holds" if found.rank == 1 else "hold"
            said += f", which {hold} {percent(share)} of their variation"
        yield said + "."
    elif found.rank == 0:
        yield "The tasks share no direction: each coefficient varies by itself, if at all."
    if isinstance(facts.gains, Gains):
        for rival in ("separate", "pooled"):
            if rival in facts.gains.squares:
                yield against(facts.gains, rival)


def against(gains: Gains, rival: str) -> str:
    """The model against a rival, in words; where it is worse, they say so."""
    found, name = gains.change(rival), RIVALS[rival]
    interval = f"95\u00a0% interval {change(found.low)} to {change(found.high)}"
    if found.ratio >= 3:
        said = f"Its error on held-out rows is {number(found.ratio, 2)} times that of {name}"
    elif abs(found.ratio - 1) < 0.0005:
        said = f"Its error on held-out rows is that of {name}"
    else:
        way = "below" if found.ratio < 1 else "above"
        size = percent(abs(found.ratio - 1))
        said = f"Its error on held-out rows is {size} {way} that of {name}"
    return f"{said} ({interval})" + ("." if found.clear else ", which may be chance.")


def numbers(facts: Facts) -> Iterator[tuple[str, str, str]]:
    """Name, value and explanation of each number that there is."""
    found, gains, target = facts.diagnosis, facts.gains, facts.target
    if isinstance(gains, Gains):
        held = f"root mean squared error on rows held out, in units of {target}"
        yield "held-out error", number(gains.rmse("model")), held
        said = "of the variance within tasks, on rows held out"
        yield "predicted", percent(gains.explained), said
    if found.noise is not None:
        yield "noise", number(found.noise), f"standard deviation, in units of {target}"
    if found.signal_to_noise is not None:
        said = "variance that the slopes explain over variance of the noise"
        yield "signal to noise", number(found.signal_to_noise), said
    if found.task_r2:
        r2 = np.array(list(found.task_r2.values()))
        said = f"median over tasks, of the rows given; lowest {number(r2.min(), 2)}"
        yield "R² within tasks", number(float(np.median(r2)), 2), said
    if found.span_share is not None and found.rank:
        said = "of the variation of coefficients between tasks"
        if found.span_share_by == "construction":
            said += ", by construction; rows (--data) would measure it"
        yield "in the span", percent(found.span_share), said
    if found.condition_number is not None and (found.rank or 0) > 1:
        said = "strongest direction over weakest"
        yield "condition number", number(found.condition_number), said
    degrees = getattr(facts.model, "degrees_of_freedom_", None)
    if degrees is not None:
        plain = found.n_tasks * (found.n_features + int(facts.model.fit_intercept))
        said = f"free numbers of the fit; separate regressions have {plain:,}"
        yield "parameters", f"{degrees:,.0f}", said
    if found.rows_per_task:
        rows = list(found.rows_per_task.values())
        said = f"median; fewest {min(rows):,}, most {max(rows):,}"
        yield "rows per task", f"{np.median(rows):,.0f}", said
    if found.isometry is not None and found.isometry_by_chance is not None:
        said = (
            "how far a task’s features are from the pooled ones along the span, at most; by chance "
            f"alone about {number(found.isometry_by_chance, 2)}"
        )
        yield "isometry", number(found.isometry, 2), said


def rank_reason(facts: Facts) -> Iterator[str]:
    """Why the model has the rank that it has."""
    model, rank = facts.model, facts.diagnosis.rank
    path = getattr(model, "rank_path_", None)
    tried = getattr(model, "candidates_", None)
    if rank is None:
        yield f"{facts.kind} has no span, and so no rank."
    elif facts.groups is not None and facts.groups[0] == "cluster":
        yield f"The span is that of {count(int(facts.groups[1].max()), 'centre')} of tasks."
    elif path is not None:
        yield from _path_reason(path)
    elif tried:
        yield from _candidates_reason(model, tried)
    elif facts.kind == "NewTaskRegressor":
        yield f"The span was given, with {count(rank, 'direction')}."
    elif isinstance(getattr(model, "rank", None), str):
        yield f"The rank is {rank}: there was nothing to choose."
    else:
        yield f"The rank was given: {rank}."


def _path_reason(path: Any) -> Iterator[str]:
    if path.method == "auto":
        tied = [int(r) for r in path.ranks[path.difference <= path.standard_error]]
        yield "Ranks were compared by their error on held-out rows, in five folds within tasks."
        if tied == [path.rank]:
            yield f"Rank {path.rank} is better than all others by more than one standard error."
        else:
            yield (
                f"Ranks {listed([str(r) for r in tied])} are within one standard error of the "
                f"best; among these the evidence (the marginal likelihood) prefers {path.rank}."
            )
    elif path.method == "evidence":
        rest = path.difference[path.ranks != path.rank]
        yield f"Rank {path.rank} has the largest marginal likelihood of all that were tried."
        if len(rest):
            yield f"The next best is smaller by a factor of e to the {number(rest.min(), 2)}."
    else:
        yield (
            f"The rank counts the directions of separate fits that stand out of the noise: "
            f"{count(path.rank, 'singular value')} of them above the threshold."
        )


def _candidates_reason(model: Any, tried: list[dict[str, Any]]) -> Iterator[str]:
    chosen = [row for row in tried if (row["slopes"], row["rank"]) == (model.slopes_, model.rank_)]
    others = [row for row in tried if row not in chosen]
    yield f"{count(len(tried), 'description')} of how tasks vary, from simple to rich, competed."
    if chosen and others:
        best = max(others, key=lambda row: row["score"])
        ahead = max(row["score"] for row in chosen) - best["score"]
        said = f"The one chosen has rank {model.rank_} and variances of the kind “{model.slopes_}”"
        if ahead > 0:
            said += (
                f"; the next best, rank {best['rank']} and “{best['slopes']}”, scores "
                f"{number(float(ahead), 2)} lower in log marginal likelihood, its parameters "
                "paid for"
            )
        yield said + "."
    elif chosen:
        yield f"There was one to choose: rank {model.rank_}."


def convergence(facts: Facts) -> Iterator[str]:
    """How the fit ended."""
    model = facts.model
    if not hasattr(model, "converged_"):
        yield f"{facts.kind} is solved in closed form or keeps no record of its iterations."
        return
    steps = count(int(model.n_iter_), "iteration")
    yield (
        f"The fit converged after {steps}."
        if model.converged_
        else (
            f"The fit did not converge: it was stopped after {steps}. Do not trust the last digits."
        )
    )
    if getattr(model, "message_", "") and not model.converged_:
        yield f"The solver says: {model.message_.rstrip('.')}."


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
