"""Advice that follows from a diagnosis, one rule per sentence."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sharedspan.diagnosis.losses import auc
from sharedspan.diagnosis.model_view import ModelView
from sharedspan.diagnosis.text import count, listed, short
from sharedspan.families import Binomial, Poisson, suggested_family
from sharedspan.inference.span_errors import SpanUncertainty
from sharedspan.mixed_model import LARGEST_RANK

if TYPE_CHECKING:
    from sharedspan.diagnosis.diagnose import Diagnosis

UNEQUAL = 2.0  # ratio of the tasks' noise deviations from which noise per task is advised
WEAK = 10.0  # condition number from which the last direction is called weak
UNDETERMINED = 0.05  # share of the usual variance of a task's features along the span
MOST_TASKS = 0.5  # share of the tasks from which it is not these that are unusual
# Rows of all tasks per parameter of the span: with fewer, errors are twice the floor.
ROWS_PER_NUMBER = 3
NEGLIGIBLE = 0.01  # ratio of the variance between tasks to the noise variance
STANDARD_ERRORS = 2000  # entries d k of B up to which standard errors are cheap to compute
CHANCE = 0.01  # level of the test that slopes differ
MANY = 10  # collinear features that are too many to drop one by one
OVERDISPERSED = 1.3  # Pearson's chi-square over its degrees of freedom
SEPARATED = 0.999  # area under the ROC curve from which classes count as separated
PINNED = 0.01  # variance p (1 - p) of responses below which all of a task's are nearly certain
NAMED = 5  # tasks named in a sentence
NAMED_GROUPS, NAMED_FEATURES = 5, 4  # of collinear features


def advice_on(
    view: ModelView, diagnosis: Diagnosis, good: np.ndarray, worse: Collection[str] = ()
) -> Iterator[str]:
    """Sentences of advice, one rule each; ``good`` (T,) marks the tasks that fit.

    ``worse`` names the simpler models, of "pooled" and "separate", that are known to predict
    held-out rows worse than another model: none of them is recommended.
    """
    rows = diagnosis.rows_per_task
    if one_row_each(view, rows):
        yield (
            "No task has more than one row, so differences between tasks cannot be distinguished "
            "from noise: name another column as the task, or give more rows of each task."
        )
        yield from _advice_on_family(view)
        return
    if view.span.converged is False:
        why = (view.span.message or "").rstrip(".")
        remedy = "see whether a smaller rank= (--rank) or fewer features predict as well."
        if "max_iter" in view.params:
            remedy = "raise max_iter (--max-iter), or lower the rank."
        problem = f"The fit did not converge ({why})" if why else "The fit did not converge"
        yield f"{problem}: the estimates may be inaccurate; {remedy}"
    elif view.is_population and view.span.message:
        yield view.span.message
    yield from _advice_on_outliers(diagnosis)
    if _no_variation(view, good):
        if view.is_normal:
            yield from _advice_on_equal_slopes(view, worse)
    elif view.rank:
        yield from _advice_on_span(view, diagnosis, worse)
    if view.rank and view.rows is not None:
        yield from _advice_on_rows(view, diagnosis)
    yield from _advice_on_family(view)
    if view.collinear:
        yield _advice_on_collinearity(view.collinear, len(view.names))
    ratio = _noise_ratio(view, good)
    if view.params.get("noise") == "shared" and ratio > UNEQUAL:
        yield (
            f"The noise differs between tasks (the ninth decile of its standard deviation is about "
            f"{ratio:.1f} times the first): use noise='per_task' (--noise-per-task)."
        )


def _advice_on_outliers(diagnosis: Diagnosis) -> Iterator[str]:
    """Sentences on tasks that do not fit, and on those that are only far from the others."""
    reasons: dict[Hashable, set[str]] = {}
    for misfit in diagnosis.misfits:
        reasons.setdefault(misfit.task, set()).add(misfit.what)
    unfit = {t for t, why in reasons.items() if why - {"place", "slope", "level"}}
    level = {t for t, why in reasons.items() if why == {"level"}}
    for one, several, kind in (
        ("does not fit", "do not fit", unfit),
        (
            "is far from the others in how it responds to features",
            "are far from the others in how they respond to features",
            reasons.keys() - unfit - level,
        ),
        ("is far from the others in its level", "are far from the others in their levels", level),
    ):
        tasks = [t for t in diagnosis.outliers if t in kind]
        many = len(tasks) > 1
        if tasks:
            yield (
                f"Task{'s' if many else ''} {_named(tasks)} {several if many else one}: check "
                f"{'their' if many else 'its'} rows before you use the predictions."
            )


def advice_on_target(looks_like: str, kind: str) -> str | None:
    """A sentence for a model of normal responses whose target looks like another family's."""
    if looks_like == "binomial":
        return (
            f"Every response is 0 or 1, but {kind} models it as normal: for probabilities use "
            "AdaptiveSpanClassifier, or AdaptiveSpanRegressor(family='binomial') (--family "
            "binomial)."
        )
    if looks_like in ("poisson", "negative_binomial"):
        return (
            f"The responses are counts, but {kind} models them as normal: for means above zero and "
            f"intervals of counts use AdaptiveSpanRegressor(family='{looks_like}') (--family "
            f"{looks_like})."
        )
    return None


def _advice_on_family(view: ModelView) -> Iterator[str]:
    """Advice on the family of the responses, from the rows."""
    if view.rows is None or view.rows.y is None:
        return
    if view.family.name == "gaussian":
        sentence = advice_on_target(suggested_family(view.rows.y), view.kind)
        if sentence is not None:
            yield sentence
    elif isinstance(view.family, Binomial):
        yield from _advice_on_classes(view, view.rows.codes, view.rows.y)
    elif isinstance(view.family, Poisson):
        yield from _advice_on_dispersion(view, view.rows.y)


def _advice_on_dispersion(view: ModelView, y: np.ndarray) -> Iterator[str]:
    """Advice on overdispersed counts, based on Pearson's chi-square statistic."""
    spare = len(y) - (view.span.degrees_of_freedom or 0.0)
    if spare < 1:
        return
    ratio = float(np.sum((y - view.means) ** 2 / view.means)) / spare
    if ratio > max(OVERDISPERSED, 1 + 4 * np.sqrt(2 / spare)):
        yield (
            f"The counts vary {ratio:.1f} times as much as Poisson counts (Pearson's chi-square "
            "over its degrees of freedom): standard errors and intervals are too small; use "
            "family='negative_binomial' (--family negative_binomial)."
        )


def _advice_on_classes(view: ModelView, codes: np.ndarray, y: np.ndarray) -> Iterator[str]:
    """Advice on classes that are separated without an error, and on tasks with one class."""
    ids, start = np.unique(codes, return_index=True)
    ones, size = np.add.reduceat(y, start), np.diff(np.append(start, len(y)))
    single = (ones == 0) | (ones == size)
    if len(ids) > 1 and single.mean() > 0.5:
        yield (
            f"In {single.sum():,} of {len(ids):,} tasks all responses are the same: their slopes "
            "are those of other tasks, and their probabilities are kept away from 0 and 1 "
            "only by the distribution over tasks."
        )
    if not np.isin(y, (0, 1)).all():
        return
    area = auc(y, view.means)
    if area > SEPARATED:
        rows = f"all {len(y):,}" if area == 1 else f"nearly all of {len(y):,}"
        yield (
            f"The model separates the classes of {rows} rows (separation): the rows hardly limit "
            "the size of the coefficients, only priors do. Do not interpret their size, and see "
            "whether a feature is known only after the response."
        )
        return
    low = np.minimum.reduceat(np.where(y == 1, view.means, 1.0), start)  # of class 1
    high = np.maximum.reduceat(np.where(y == 0, view.means, 0.0), start)  # of class 0
    spread = np.maximum.reduceat(view.means * (1 - view.means), start)
    pinned = ~single & (low > high) & (spread < PINNED)
    if pinned.any():
        labels = [view.labels[t] for t in ids[pinned]]
        yield (
            f"In task{'s' if len(labels) > 1 else ''} {_named(labels)} all probabilities are near "
            "0 or 1 and the classes are predicted without an error (separation): only the "
            "distribution over tasks bounds the coefficients."
        )


def _advice_on_span(view: ModelView, diagnosis: Diagnosis, worse: Collection[str]) -> Iterator[str]:
    rank = view.rank
    assert rank is not None
    T, d = view.coef.shape
    if isinstance(view.params.get("rank"), str):
        largest = min(d, T)
        if view.is_population:
            largest = min(d + int(view.centred), T - 1, LARGEST_RANK)
        if rank >= largest > 1:
            advice = "Try AdaptiveSpanRegressor, which need not find a span."
            if view.is_population and rank < min(d, T):
                advice = "Give a larger rank= (--rank) to go further."
            elif view.is_population:
                advice = "Separate regressions may do as well." * ("separate" not in worse)
            problem = f"The rank, {rank}, is the largest that was tried: the tasks share little."
            yield f"{problem} {advice}".rstrip()
    kappa, share = diagnosis.condition_number, diagnosis.span_share
    if kappa is not None and kappa > WEAK and diagnosis.standardised:
        yield (
            f"The last of the {rank} directions is {kappa:.0f} times weaker than the first: do not "
            f"over-interpret it, and see whether rank={rank - 1} (--rank {rank - 1}) predicts as "
            "well."
        )
    if share is not None and share < 0.5:
        yield (
            f"Only {100 * share:.0f} % of the variation of slopes between tasks is in the span: "
            + ("see how much each coefficient varies independently of the others (slope_std_) "
               "before you interpret the directions." if view.is_population
               else "use AdaptiveSpanRegressor, which lets tasks leave it.")
        )  # fmt: skip


def _advice_on_rows(view: ModelView, diagnosis: Diagnosis) -> Iterator[str]:
    rank, rows = view.rank or 0, diagnosis.rows_per_task
    T, d = view.coef.shape
    needed = rank + int(view.centred) + 1
    few = [label for label, n in rows.items() if n < needed]
    if few:
        yield (
            f"{len(few)} of {len(rows)} tasks {'has' if len(few) == 1 else 'have'} fewer than the "
            f"{needed} rows that rank {rank} needs ({_named(few)}): "
            + ("their coefficients are mostly the common ones." if view.is_population
               else "give more rows, lower the rank, or use AdaptiveSpanRegressor.")
        )  # fmt: skip
    numbers = rank * (d + T - rank)
    total = sum(rows.values())
    if view.confined and len(rows) == T and not few and total < ROWS_PER_NUMBER * numbers:
        yield (
            f"There are only {total / numbers:.1f} rows per parameter of a span of rank {rank} "
            f"({numbers:,} parameters): too few to estimate it well; lower the rank or use "
            "AdaptiveSpanRegressor."
        )
    flat = [view.labels[t] for t in view.undetermined(UNDETERMINED)]
    flat = [label for label in flat if label not in set(few)]
    if 0 < len(flat) <= MOST_TASKS * len(rows):
        yield (
            f"The features of task{'s' if len(flat) > 1 else ''} {_named(flat)} hardly vary along "
            "some direction of the span: coefficients there are not determined by their own rows; "
            + ("read these as those of the other tasks." if view.is_population
               else "give rows in which they vary, or use AdaptiveSpanRegressor.")
        )  # fmt: skip


def _advice_on_collinearity(groups: Sequence[Sequence[str]], n_features: int) -> str:
    """A sentence on groups of collinear features."""
    sizes = [len(group) for group in groups]
    if max(sizes) > max(n_features / 2, MANY):
        return (
            f"The rows do not identify the coefficients of {sum(sizes)} of the {n_features} "
            "features, only their combined effects: give more rows, or drop features."
        )
    drop = "one" if len(groups) == 1 else "one of each group"
    return (
        f"The coefficients of {named_groups(groups)} cannot be distinguished, as these "
        "features are nearly collinear within tasks; only their combined effect is estimated: drop "
        f"{drop}, or interpret them together."
    )


def named_groups(groups: Sequence[Sequence[str]]) -> str:
    """The first few groups, and the first few features of each."""
    named = [listed([short(name) for name in group], NAMED_FEATURES) for group in groups]
    more = len(groups) - NAMED_GROUPS
    return "; of ".join(named[:NAMED_GROUPS] + ([count(more, "more group")] if more > 0 else []))


def _no_variation(view: ModelView, good: np.ndarray) -> bool:
    """Whether slopes differ between tasks only negligibly, or no more than by chance."""
    if len(view.labels) == 1 or view.model.shares == "slopes":
        return False
    total = float(np.sum(view.shift[good] ** 2))
    if total <= 1e-12 * np.sum(view.coef[good] ** 2):
        return True
    # The variance within tasks that the slopes of single tasks explain.
    if view.noise and total / good.sum() < NEGLIGIBLE * view.noise**2:
        return True
    uncertainty = view.span.uncertainty
    if not isinstance(uncertainty, SpanUncertainty) or uncertainty.B.size > STANDARD_ERRORS:
        return False
    # A chi-square test that all tasks have the same weights.
    from scipy.stats import chi2

    W, k = uncertainty.W[good], uncertainty.B.shape[1]
    covariance = uncertainty.weights_covariance[good]
    precision = np.linalg.pinv(covariance, rcond=1e-10, hermitian=True)
    mean = np.linalg.pinv(precision.sum(axis=0)) @ np.einsum("tab,tb->a", precision, W)
    statistic = float(np.einsum("ta,tab,tb->", W - mean, precision, W - mean))
    return statistic <= chi2.isf(CHANCE, k * max(len(W) - 1, 1))


def _advice_on_equal_slopes(view: ModelView, worse: Collection[str]) -> Iterator[str]:
    """A sentence for slopes that hardly vary; it names a simpler model only if that is the same."""
    level = float(np.mean(view.levels**2))
    if view.is_population and view.noise and level < NEGLIGIBLE * view.noise**2:
        yield "The tasks hardly differ, neither in their slopes nor in their level."
    elif view.is_population or not _is_like_pooled(view):
        yield (
            "Compared with the noise, the slopes hardly vary between tasks: what differs is their "
            "level."
        )
    elif "pooled" not in worse:
        yield (
            "The slopes hardly vary between tasks: PooledRegressor, with one slope vector for "
            "all, does the same."
        )


def _is_like_pooled(view: ModelView) -> bool:
    """Whether equal slopes make a model the same as PooledRegressor.

    That has no slopes of features that are constant within tasks, and refuses tasks it has not
    seen.
    """
    constant = view.metric.deviation == 0
    return not view.span.coef[:, constant].any() and view.params.get("unseen", "error") == "error"


def one_row_each(view: ModelView, rows: Mapping[Hashable, int]) -> bool:
    """Whether no task has more than one row, judging by the rows or else by their number in fit."""
    if rows:
        return len(rows) > 1 and max(rows.values()) == 1
    return 1 < len(view.labels) == view.span.extra.get("n_rows")


def _noise_ratio(view: ModelView, good: np.ndarray) -> float:
    """Ratio of the ninth to the first decile of the tasks' noise, corrected for chance."""
    if view.residuals is None:
        return 1.0
    ids, squares, degrees = view.residuals
    enough = good[ids] & (degrees >= 10) & (squares > 0)
    if enough.sum() < 10:
        return 1.0
    logs = 0.5 * np.log(squares[enough] / degrees[enough])
    # A log deviation with f degrees of freedom has variance 1 / 2f; in standard deviations, the
    # two deciles of a normal distribution are 2.56 apart.
    apart = np.subtract(*np.quantile(logs, [0.9, 0.1])) / 2.56
    excess = apart**2 - np.mean(0.5 / degrees[enough])
    return float(np.exp(2.56 * np.sqrt(max(excess, 0.0))))


def _named(labels: Sequence[Hashable]) -> str:
    """The first few labels as text."""
    return listed([short(label) for label in labels], NAMED)
