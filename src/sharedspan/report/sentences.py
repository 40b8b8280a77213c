"""The report in words: what was fitted and how well, what to do about it, how the fit ended."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sharedspan.diagnosis.holdout_errors import NOTHING_TO_PREDICT, RIVALS, Gains
from sharedspan.diagnosis.model_view import SPARE_ROWS, span_of
from sharedspan.diagnosis.text import change, count, number, percent
from sharedspan.report.facts import Facts
from sharedspan.report.gain_words import against, beaten

WHOLE = 0.995  # share from which it is shown as all
SAME = 1e-9  # variation of slopes between tasks, over their size, that is rounding


def headline(facts: Facts) -> Iterator[tuple[str, str]]:
    """A few large numbers and their words."""
    found, gains = facts.diagnosis, facts.gains
    yield f"{found.n_tasks:,}", "task fitted" if found.n_tasks == 1 else "tasks fitted together"
    if found.rank is not None and facts.gains != NOTHING_TO_PREDICT:
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
    if facts.gains == NOTHING_TO_PREDICT:
        yield NOTHING_TO_PREDICT
    elif same_slopes(facts):
        yield "All tasks have the same slopes, and differ in their level alone."
    elif on_all_slopes(facts):
        yield (
            "In place of a span it has a prior on all slopes: the fewer rows a task has, the "
            "nearer are its slopes to the mean of the prior."
        )
    elif found.rank:
        what = "deviations from the common coefficients" if facts.directions.about_mean else (
            "coefficients")  # fmt: skip
        share = found.span_share
        said = f"The tasks’ {what} share {count(found.rank, 'direction')}"
        if share is not None and found.span_share_by != "construction":
            hold = "holds" if found.rank == 1 else "hold"
            said += f", which {hold} {percent(share)} of how slopes differ between tasks"
            if found.span_share_by == "rows" and share < WHOLE:
                said += "; the model leaves out the rest"
        yield said + "."
    elif found.rank == 0:
        yield "The tasks share no direction: each coefficient varies by itself, if at all."
    if isinstance(facts.gains, Gains):
        for rival in ("separate", "pooled"):
            if rival in facts.gains.squares:
                yield against(facts.gains, rival)


def same_slopes(facts: Facts) -> bool:
    """Whether all tasks have the same slopes."""
    coef: np.ndarray = facts.model.coef_
    return len(coef) > 1 and float(np.ptp(coef, axis=0).max()) <= SAME * float(np.abs(coef).max())


def on_all_slopes(facts: Facts) -> bool:
    """Whether new tasks were fitted with all features instead of a span."""
    return facts.kind == "NewTaskRegressor" and span_of(facts.model) is None


def advice(facts: Facts) -> Iterator[str]:
    """What to do; first of all where a simpler model predicts better."""
    if isinstance(facts.gains, Gains):
        yield from beaten(facts, facts.gains)
    yield from facts.advice


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
        said = "variance that the slopes explain over that of the noise (signal to noise)"
        yield "explained over noise", number(found.signal_to_noise), said
    if found.task_r2:
        r2 = np.array(list(found.task_r2.values()))
        said = f"median over tasks, of the rows given; lowest {number(r2.min(), 2)}"
        yield "R² within tasks", number(float(np.median(r2)), 2), said
    if found.span_share is not None and found.rank:
        said = "of how slopes differ between tasks, by what they predict"
        if found.span_share_by == "construction":
            said += f", by construction: {_not_measured(facts)}"
        yield "in the span", percent(found.span_share), said
    if found.condition_number is not None and (found.rank or 0) > 1:
        said = "how much stronger the first direction is than the last (condition number)"
        yield "strongest over weakest", number(found.condition_number), said
    degrees = getattr(facts.model, "degrees_of_freedom_", None)
    if degrees is not None:
        said = "numbers that the fit took from the rows, for all tasks together"
        yield "parameters", f"{degrees:,.0f}", said
    if found.rows_per_task:
        rows = list(found.rows_per_task.values())
        said = f"median; fewest {min(rows):,}, most {max(rows):,}"
        yield "rows per task", f"{np.median(rows):,.0f}", said
    by_chance = found.isometry_by_chance
    if facts.directions.rank and found.isometry is not None and by_chance is not None:
        said = (
            "how far the features of the most unusual task vary otherwise than those of all tasks, "
            f"along the span; by chance alone about {number(by_chance, 2)} "
            "(isometry)"
        )
        yield "unlike features", number(found.isometry, 2), said


def _not_measured(facts: Facts) -> str:
    """Why nothing is known of what lies off the span."""
    found = facts.diagnosis
    if not facts.n_rows:
        return "rows (--data) would measure it"
    if found.rank == found.n_features:
        return "the span holds all features"
    needed = found.n_features + int(facts.model.fit_intercept) + SPARE_ROWS
    if max(found.rows_per_task.values(), default=0) < needed:
        return f"no task has the {needed:,} rows that it takes to measure it"
    return "these rows do not tell what lies outside it"


def no_directions(facts: Facts) -> str:
    """Why there are no directions to tell of."""
    if same_slopes(facts):
        return "All tasks have the same slopes, and so no direction in which these differ."
    if on_all_slopes(facts):
        return "This model has a prior on all slopes in place of shared directions."
    if facts.diagnosis.rank == 0:
        return "The tasks share no direction: coefficients vary each by itself."
    return f"{facts.kind} has no shared directions."


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
