"""Diagnosis of a fitted model: how much its tasks share, which do not fit, and advice."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from textwrap import wrap
from typing import Any

import numpy as np

from sharedspan.diagnosis.advice import advice_on, one_row_each
from sharedspan.diagnosis.losses import SCORES
from sharedspan.diagnosis.misfits import (
    FAR,
    FEWEST_PLACES,
    Misfit,
    find_misfits,
    rows_would_tell,
)
from sharedspan.diagnosis.model_view import SPARE_ROWS, ModelView
from sharedspan.diagnosis.text import count, format_number, listed, percent, short
from sharedspan.inference.summary_markup import sections_html
from sharedspan.inference.summary_tables import Lines, SummaryTable

DIFFERENT = 3  # tasks that are named if none does not fit
TIED = 0.01  # a relative difference below which no one of several tasks is named
ALIKE = 0.05  # relative difference of the tasks that are counted if none is named
SAME = 1e-9  # a difference relative to the coefficients that is rounding
SHOWN = 15  # lines of the table of tasks that do not fit


@dataclass(frozen=True)
class Diagnosis:
    """The result of ``diagnose``; print it for an explanation. Unknown numbers are None.

    Attributes
    ----------
    model : str
        Name of the class.
    n_tasks, n_features : int
    rank : int or None
    condition_number : float or None
        s_1 / s_k of the coefficients within the span, or of their deviations from the mean if the
        model has a ``mean_coef_``. Like all comparisons of coefficients here, it is based on their
        predictions, v'Sv with S the pooled covariance of the features within tasks.
    standardised : bool
        Whether the covariance or the deviations of the features are known, from the model or from
        rows; otherwise coefficients are compared in the features' own units.
    span_share : float or None
        Share of the variation of coefficients between tasks that is in the span, measured by the
        coefficients of the model. If these are in the span by construction and tasks have enough
        rows, it is measured by how well the span explains the rows.
    span_share_by : str
        "coefficients" or "rows" if the share was measured by these, or "construction" if nothing
        outside the span could be measured, for the reason ``not_measured``.
    noise : float or None
        Standard deviation, from the mean of the tasks' variances as in ``summary``.
    outliers : list
        Labels of the tasks that do not fit, the most surprising first.
    misfits : list of Misfit
        The reasons, in the same order; a task may have several.
    advice : list of str
    most_different : list
        Labels of the three tasks whose predictions differ most from those of the mean coefficients,
        by the root mean square difference over rows whose features have the pooled mean and
        within-task covariance. Tasks that tie with others are left out.
    most_different_in : list of (str, float)
        What these tasks differ in most, their level or a slope, and by how many standard deviations
        between tasks.
    n_alike : int
        If the most different tasks tie, how many differ about as much as these.
    directions : list of str
        Sentences on the directions along which tasks vary together, as in ``summary``.
    rows_would_tell : bool
        Whether the tasks were judged from the model alone, while the rows of the fit could show
        further tasks that do not fit.
    signal_to_noise : float or None
        Ratio of the variance within tasks of the fitted part to the noise variance.
    isometry : float or None
        Largest deviation from one of the eigenvalues of a task's feature covariance along the
        span, after pooled whitening. ``isometry_task`` is the task, and ``isometry_by_chance`` is
        about the value for Gaussian features with the same covariance in all tasks.
    rows_per_task : dict of label to int
    task_r2 : dict of label to float
        R^2 about the mean of the task; without tasks whose responses are all equal.
    family : str
        The family of the responses. ``noise``, ``signal_to_noise`` and ``task_r2`` are those of
        normal ones.
    scores : dict of str to float
        For other families, scores of the predicted means of the rows: log loss, AUC and Brier
        score, or the mean Poisson deviance.
    """

    model: str
    n_tasks: int
    n_features: int
    rank: int | None
    condition_number: float | None
    span_share: float | None
    span_share_by: str
    noise: float | None
    outliers: list[Hashable]
    misfits: list[Misfit]
    advice: list[str]
    signal_to_noise: float | None = None
    isometry: float | None = None
    isometry_task: Hashable = None
    isometry_by_chance: float | None = None
    standardised: bool = True
    rows_per_task: dict[Hashable, int] = field(default_factory=dict)
    task_r2: dict[Hashable, float] = field(default_factory=dict)
    not_measured: str = ""
    family: str = "gaussian"
    scores: dict[str, float] = field(default_factory=dict)
    most_different: list[Hashable] = field(default_factory=list)
    most_different_in: list[tuple[str, float]] = field(default_factory=list)
    n_alike: int = 0
    directions: list[str] = field(default_factory=list)
    rows_would_tell: bool = False

    @property
    def none_is_odd(self) -> str:
        """A sentence if no task was found that does not fit, with the most different ones."""
        if self.misfits or self.n_tasks < 2:
            return ""
        rows = self.rows_per_task
        if self.n_alike:
            return (
                "No task is far from what the model expects of it, and none stands out: judging by "
                f"their predictions, {self.n_alike:,} tasks are about equally different."
            )
        if not self.most_different:
            one_row = bool(rows) and max(rows.values()) == 1
            return "" if one_row else "No task differs from the others in what is predicted of it."
        labels = (short(label) for label in self.most_different)
        names = (f"“{label}”" if "," in label else label for label in labels)
        parts = (
            f"{name} ({short(what)} {'+' if size > 0 else ''}{format_number(size, 2)})"
            for name, (what, size) in zip(names, self.most_different_in, strict=True)
        )
        are = "is" if len(self.most_different) == 1 else "are"
        return (
            "No task is far from what the model expects of it. The most different, judging by "
            f"their predictions, {are} {listed(parts)}, in standard deviations between tasks: "
            f"among {self.n_tasks:,} tasks the largest is about "
            f"{format_number(_largest_by_chance(self.n_tasks), 2)} by chance"
            + (
                f", and only a task beyond {FAR:.0f}, in robust standard deviations that include "
                "the error of its estimate, is far."
                if self.n_tasks >= FEWEST_PLACES
                else "."
            )
        )

    @property
    def judged_from(self) -> str:
        """A sentence if the rows of the fit could show further tasks that do not fit."""
        if not self.rows_would_tell or self.n_tasks < 2:
            return ""
        return (
            "Tasks were judged from the model alone: give the rows of the fit (--data, in Python "
            "X, y and task) to judge them by their errors, too."
        )

    @property
    def title(self) -> str:
        """What was diagnosed, in a line."""
        family = "" if self.family == "gaussian" else f", {self.family} responses"
        sizes = f"{count(self.n_tasks, 'task')}, {count(self.n_features, 'feature')}"
        return f"{self.model}: {sizes}{family}"

    def __str__(self) -> str:
        lines, numbers = [self.title], list(self.numbers())
        width = max((len(value) for _, value, _ in numbers), default=0)
        lines += [f"  {name:<24}{value:>{width}}  {words}" for name, value, words in numbers]
        if self.directions:
            lines.append("")
            for sentence in self.directions:
                lines += wrap(sentence, 88, subsequent_indent="  ")
        if self.misfits:
            lines += ["", f"{self.misfit_title}:", *misfit_lines(self.misfits)]
        elif self.none_is_odd:
            lines += ["", *wrap(self.none_is_odd, 88)]
        if self.judged_from:
            lines += wrap(self.judged_from, 88)
        if self.advice:
            lines += ["", "Advice:"]
            for sentence in self.advice:
                lines += wrap(sentence, 88, initial_indent="  - ", subsequent_indent="    ")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return sections_html(self._sections())

    def _sections(self) -> Iterator[Lines | SummaryTable]:
        """The parts of the diagnosis, for HTML."""
        yield Lines(self.title, ())
        numbers = tuple(self.numbers())
        if numbers:
            yield SummaryTable("", ("measure", "value", "meaning"), numbers, texts=1)
        if self.directions:
            yield Lines("Directions", tuple(("", sentence) for sentence in self.directions))
        if self.misfits:
            more = len(self.misfits) - SHOWN
            yield SummaryTable(
                self.misfit_title,
                ("task", "value", "typical", "what is odd"),
                tuple((task, *sizes, what) for task, what, *sizes in _misfit_cells(self.misfits)),
                notes=(f"{more} more are in the attribute misfits.",) if more > 0 else (),
                texts=1,
            )
        elif self.none_is_odd:
            yield Lines("", (("", self.none_is_odd),))
        if self.judged_from:
            yield Lines("", (("", self.judged_from),))
        if self.advice:
            yield Lines("Advice", tuple(("", sentence) for sentence in self.advice))

    @property
    def misfit_title(self) -> str:
        """How many tasks do not fit, and their share of the rows if rows were given."""
        counts, rows = f"{len(self.outliers):,} of {self.n_tasks:,}", self.rows_per_task
        if rows:
            share = sum(rows.get(label, 0) for label in self.outliers) / sum(rows.values())
            counts += f", with {percent(share)} of the rows".replace("\u00a0", " ")
        return f"Tasks that do not fit ({counts})"

    def numbers(self, target: str | None = None) -> Iterator[tuple[str, str, str]]:
        """Name, value and explanation of each known number; ``target`` names the response."""
        units = "" if self.standardised else ", in units of the features: give rows to standardise"
        if self.rank is not None:
            words = "directions along which the tasks vary together"
            yield "rank", str(self.rank), words if self.rank else "no direction is shared"
        if self.condition_number is not None and self.rank != 1:
            words = "how much stronger the first direction is than the last (condition number)"
            yield "strongest over weakest", format_number(self.condition_number), words + units
        if self.span_share is not None and self.rank:
            words = "of the variation of slopes between tasks"
            words += units or ", measured by their predictions"
            if self.span_share_by == "construction":
                words += f", by construction: {self.not_measured}"
            yield "in the span", percent(self.span_share), words
        if self.noise is not None:
            words = "standard deviation" + ("" if target is None else f", in units of {target}")
            yield "noise", format_number(self.noise), words
        if self.signal_to_noise is not None:
            words = "variance explained by the slopes over the noise variance (signal to noise)"
            yield "explained over noise", format_number(self.signal_to_noise), words
        if self.rows_per_task:
            rows = list(self.rows_per_task.values())
            words = f"median; fewest {min(rows):,}, most {max(rows):,}"
            yield "rows per task", f"{np.median(rows):,.0f}", words
        if self.task_r2:
            worst = min(self.task_r2, key=self.task_r2.__getitem__)
            lowest = f"lowest {format_number(self.task_r2[worst], 2)}, task {short(worst)}"
            median = float(np.median(list(self.task_r2.values())))
            words = f"median over tasks, of the rows given; {lowest}"
            yield "R² within tasks", format_number(median, 2), words
        for name, value in self.scores.items():
            yield name, format_number(value), f"{SCORES[name]}, of the rows given"
        if self.isometry is not None:
            words = (
                f"how differently the features of task {short(self.isometry_task)} vary along the "
                "span from the features of all tasks; by chance alone about "
                f"{format_number(self.isometry_by_chance or 0.0, 2)} (isometry)"
            )
            yield "unlike features", format_number(self.isometry, 2), words


def diagnose(model: Any, X: Any = None, y: Any = None, task: Any = None) -> Diagnosis:
    """Diagnose how much the tasks of a fitted model share and which do not fit, with advice.

    Parameters
    ----------
    model : fitted estimator of this package
        Or a Pipeline that ends in one.
    X, y, task : optional
        Rows, as for ``fit``, preferably those of the fit. They add ``signal_to_noise``,
        ``isometry``, rows and R^2 per task. If the model alone cannot tell all tasks that do not
        fit (``rows_would_tell``), the rows add those with large errors. Rows of tasks that were not
        fitted are left out.

    Returns
    -------
    Diagnosis
        Print it for an explanation.

    Examples
    --------
    >>> import sharedspan as ss
    >>> sim = ss.simulate(n_tasks=60, n_features=20, rank=2, n_samples=50, outliers=0.05,
    ...                   random_state=0)
    >>> model = ss.AdaptiveSpanRegressor().fit(sim.X, sim.y, task=sim.task)
    >>> sorted(ss.diagnose(model).outliers) == sim.is_outlier.nonzero()[0].tolist()
    True
    """
    if X is None and y is not None:
        raise ValueError("y was given without X: give both, or neither.")
    return diagnose_view(ModelView(model, X, y, task))


def diagnose_view(view: ModelView) -> Diagnosis:
    """The diagnosis of a model and its rows."""
    misfits = find_misfits(view)
    outliers = list(dict.fromkeys(misfit.task for misfit in misfits))
    good = np.array([label not in set(outliers) for label in view.labels])
    share, source = view.span_share(good)
    sizes = ((), ()) if view.rows is None else view.rows.sizes
    diagnosis = Diagnosis(
        model=view.kind,
        n_tasks=len(view.labels),
        n_features=len(view.names),
        rank=view.rank,
        condition_number=view.condition_number(good),
        span_share=share,
        span_share_by=source,
        noise=view.noise,
        outliers=outliers,
        misfits=misfits,
        advice=[],
        signal_to_noise=view.signal_to_noise(),
        standardised=view.metric.known,
        rows_per_task={view.labels[t]: int(n) for t, n in zip(*sizes, strict=True)},
        task_r2=view.task_r2(),
        family=view.family.name,
        scores=view.scores(),
        not_measured=_not_measured(view),
        rows_would_tell=rows_would_tell(view),
        **_most_different(view),
        **view.isometry(),
    )
    directions = (
        []
        if one_row_each(view, diagnosis.rows_per_task)
        else (view.directions.sentences(view.names))
    )
    advice = list(advice_on(view, diagnosis, good))
    return replace(diagnosis, advice=advice, directions=directions)


def _largest_by_chance(n: int) -> float:
    """The median of the largest of n standard normal numbers, signs aside."""
    from scipy.stats import norm

    return float(norm.isf((1 - 0.5 ** (1 / n)) / 2))


def _most_different(view: ModelView) -> dict[str, Any]:
    """The tasks whose predictions differ most from those of the mean task, and in what."""
    distance = view.distance
    order = np.argsort(-distance, kind="stable")
    size = np.abs(view.span.intercept).max(initial=0.0) + np.abs(view.coef).max(initial=0.0)
    order = order[:-1][distance[order[:-1]] > SAME * size]
    named, others = order[:DIFFERENT], order[DIFFERENT:]
    if len(others):
        named = named[distance[others[0]] < (1 - TIED) * distance[named]]
    if len(order) and not len(named):
        return {"n_alike": int(np.sum(distance >= (1 - ALIKE) * distance[order[0]]))}
    return {
        "most_different": [view.labels[t] for t in named],
        "most_different_in": [_differs_in(view, t) for t in named],
    }


def _differs_in(view: ModelView, t: int) -> tuple[str, float]:
    """What a task differs in most, and by how many standard deviations between tasks."""
    level, slopes = view.levels, view.shift
    if abs(level[t]) >= np.linalg.norm(slopes[t]):
        return "level", float(level[t] / np.std(level))
    j = int(np.abs(slopes[t]).argmax())
    return f"slope of {view.names[j]}", float(slopes[t, j] / np.std(slopes[:, j]))


def _not_measured(view: ModelView) -> str:
    """The reason why variation outside a span that coefficients cannot leave is unknown."""
    if view.rows is None:
        return "rows (--data) would measure it"
    if view.rank == len(view.names):
        return "the span contains all features"
    needed = len(view.names) + int(view.centred) + SPARE_ROWS
    if view.rows.sizes[1].max() < needed:
        return f"no task has the {needed:,} rows needed to measure it"
    return "these rows do not determine the variation outside it"


def _misfit_cells(misfits: Sequence[Misfit]) -> Iterator[tuple[str, str, str, str]]:
    """Task, reason, value and typical value of the misfits that are shown."""
    for misfit in misfits[:SHOWN]:
        what = misfit.reason + (f", most in {misfit.feature}" if misfit.feature else "")
        yield str(misfit.task), what, f"{misfit.value:.3g}", f"{misfit.typical:.3g}"


def misfit_lines(misfits: Sequence[Misfit]) -> list[str]:
    """Lines of the table of tasks that do not fit."""
    cells = [("task", "what is odd", "value", "typical"), *_misfit_cells(misfits)]
    a, b, c, e = (max(map(len, column)) for column in zip(*cells, strict=True))
    lines = [f"  {i:<{a}}  {w:<{b}}  {x:>{c}}  {m:>{e}}" for i, w, x, m in cells]
    if len(misfits) > SHOWN:
        lines.append(f"  and {len(misfits) - SHOWN} more")
    return lines
