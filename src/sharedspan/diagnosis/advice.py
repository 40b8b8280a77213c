"""What to do about what the diagnosis found, each sentence by a rule of its own."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sharedspan.diagnosis.metric import on_collinear
from sharedspan.diagnosis.model_view import Look
from sharedspan.estimators.adaptive import LARGEST_RANK
from sharedspan.estimators.baselines import PooledRegressor
from sharedspan.inference.span_errors import SpanUncertainty

if TYPE_CHECKING:
    from sharedspan.diagnosis.diagnose import Diagnosis

UNEQUAL = 2.0  # ratio of noise deviations of tasks from which they had better be told apart
WEAK = 10.0  # condition number from which the last direction is called weak
UNDETERMINED = 0.05  # share of the usual variance of a task's features along the span
# Of all tasks per number of the model: below, errors are twice the floor (see planning.py).
ROWS_PER_NUMBER = 3
NEGLIGIBLE = 0.01  # variance between tasks over that of the noise
STANDARD_ERRORS = 2000  # numbers d k up to which standard errors are cheap enough to ask for
CHANCE = 0.01  # level of the test whether slopes differ
NAMED = 5  # tasks named in a sentence


def advise(look: Look, found: Diagnosis, good: np.ndarray) -> Iterator[str]:
    """What to do, each sentence by a rule of its own."""
    model = look.model
    if getattr(model, "converged_", True) is False:
        why = getattr(model, "message_", "").rstrip(".")
        remedy = "see whether a smaller rank= (--rank) or fewer features predict as well."
        if hasattr(model, "max_iter"):
            remedy = "raise max_iter (--max-iter), or lower the rank."
        said = f"The fit did not converge ({why})" if why else "The fit did not converge"
        yield f"{said}: do not trust the last digits; {remedy}"
    if found.outliers:
        many = len(found.outliers) > 1
        yield (
            f"Task{'s' if many else ''} {_names(found.outliers)} "
            f"{'do' if many else 'does'} not fit: look at {'their' if many else 'its'} rows before "
            "you use the predictions."
        )
    if _no_variation(look, good):
        yield (
            "The slopes hardly vary between tasks: PooledRegressor, with one slope vector for all, "
            "does the same."
        )
    elif look.rank:
        yield from _advice_on_span(look, found)
    if look.rank and look.rows is not None:
        yield from _advice_on_rows(look, found)
    collinear = on_collinear(look.metric.groups, [str(name) for name in model.coef_names_])
    if collinear:
        yield collinear
    ratio = _noise_ratio(look, good)
    if getattr(model, "noise", None) == "shared" and ratio > UNEQUAL:
        yield (
            f"One task in ten has over {ratio:.1f} times the noise of another tenth: use "
            "noise='per_task' (--noise-per-task)."
        )


def _advice_on_span(look: Look, found: Diagnosis) -> Iterator[str]:
    model, rank = look.model, look.rank
    assert rank is not None
    T, d = look.coef.shape
    if isinstance(getattr(model, "rank", None), str):
        largest = min(d, T)
        if look.adaptive:
            largest = min(d + int(model.fit_intercept), T - 1, LARGEST_RANK)
        if rank >= largest > 1:
            yield (
                f"The rank, {rank}, is the largest that was looked at: the tasks share little. "
                + ("Give a larger rank= (--rank) to look further."
                   if rank < min(d, T) and look.adaptive
                   else "PerTaskRegressor may do as well." if look.adaptive
                   else "Try AdaptiveSpanRegressor, which need not find a span.")
            )  # fmt: skip
    kappa, share = found.condition_number, found.span_share
    if kappa is not None and kappa > WEAK and found.standardised:
        yield (
            f"The last of the {rank} directions is {kappa:.0f} times weaker than the first: read "
            f"little into it, and see whether rank={rank - 1} (--rank {rank - 1}) predicts as well."
        )
    if share is not None and share < 0.5:
        yield (
            f"Only {100 * share:.0f} % of how slopes differ between tasks lies in the span: "
            + ("see how much each coefficient varies by itself (slope_std_) before you read the "
               "directions." if look.adaptive
               else "use AdaptiveSpanRegressor, which lets tasks leave it.")
        )  # fmt: skip


def _advice_on_rows(look: Look, found: Diagnosis) -> Iterator[str]:
    model, rank, rows = look.model, look.rank or 0, found.rows_per_task
    T, d = look.coef.shape
    needed = rank + int(model.fit_intercept) + 1
    few = [label for label, n in rows.items() if n < needed]
    if few:
        yield (
            f"{len(few)} of {len(rows)} tasks have fewer than the {needed} rows that rank {rank} "
            f"needs ({_names(few)}): "
            + ("theirs are mostly the common coefficients." if look.adaptive
               else "give more rows, lower the rank, or use AdaptiveSpanRegressor.")
        )  # fmt: skip
    numbers = rank * (d + T - rank)
    total = sum(rows.values())
    if look.hard and len(rows) == T and not few and total < ROWS_PER_NUMBER * numbers:
        yield (
            f"There are {total / numbers:.1f} rows for each of the {numbers:,} numbers of a span "
            f"of rank {rank}: too few to learn it well; lower the rank or use "
            "AdaptiveSpanRegressor."
        )
    still = [label for label in rows if label not in few]
    flat = [look.labels[t] for t, value in look.least.items() if value < UNDETERMINED]
    flat = [label for label in flat if label in still]
    if flat:
        yield (
            f"The features of task{'s' if len(flat) > 1 else ''} {_names(flat)} hardly vary along "
            "some direction of the span: coefficients there are not from rows of their own."
        )


def _no_variation(look: Look, good: np.ndarray) -> bool:
    """Whether slopes differ between tasks by nothing that matters, or no more than by chance."""
    model, T = look.model, len(look.labels)
    if T == 1 or isinstance(model, PooledRegressor):
        return False
    total = float(np.sum(look.shift[good] ** 2))
    if total <= 1e-12 * np.sum(look.coef[good] ** 2):
        return True
    # This is the variance within tasks that slopes of their own explain.
    if look.noise and total / good.sum() < NEGLIGIBLE * look.noise**2:
        return True
    kept = getattr(model, "_uncertainty_", None)
    if not isinstance(kept, SpanUncertainty) or kept.B.size > STANDARD_ERRORS:
        return False
    return _differ_by_chance(kept, good)


def _differ_by_chance(kept: SpanUncertainty, good: np.ndarray) -> bool:
    """Whether the weights of tasks are one vector by the chi-square test of their errors."""
    from scipy.stats import chi2

    W, k = kept.W[good], kept.B.shape[1]
    precision = np.linalg.pinv(kept.weights_covariance[good], rcond=1e-10, hermitian=True)
    mean = np.linalg.pinv(precision.sum(axis=0)) @ np.einsum("tab,tb->a", precision, W)
    statistic = float(np.einsum("ta,tab,tb->", W - mean, precision, W - mean))
    return statistic <= chi2.isf(CHANCE, k * max(len(W) - 1, 1))


def _noise_ratio(look: Look, good: np.ndarray) -> float:
    """Ninth over first decile of the tasks' noise deviations, less what chance makes of it."""
    if look.residuals is None:
        return 1.0
    ids, squares, degrees = look.residuals
    kept = good[ids] & (degrees >= 10) & (squares > 0)
    if kept.sum() < 10:
        return 1.0
    logs = 0.5 * np.log(squares[kept] / degrees[kept])
    # A log deviation of f degrees of freedom has variance 1 / 2f; deciles lie 2.56 apart.
    apart = np.subtract(*np.quantile(logs, [0.9, 0.1])) / 2.56
    excess = apart**2 - np.mean(0.5 / degrees[kept])
    return float(np.exp(2.56 * np.sqrt(max(excess, 0.0))))


def _names(labels: Sequence[Hashable]) -> str:
    """Some labels, in words."""
    shown = [str(label) for label in labels[:NAMED]]
    if len(labels) > NAMED:
        return f"{', '.join(shown)} and {len(labels) - NAMED} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
