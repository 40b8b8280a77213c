"""Comparison of methods on the same repeated splits of a table.

Each split holds out a quarter of every task's rows, and four splits hold out each row once. Methods
are compared task by task (leaderboard.py).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sharedspan.diagnosis.compared_methods import (
    POOLED,
    SEPARATE,
    adaptive_methods,
    checked_family,
    chosen_methods,
    default_methods,
    make_estimator,
    python_lines,
)
from sharedspan.diagnosis.holdout_errors import FEWEST_ROWS, N_FOLDS
from sharedspan.diagnosis.leaderboard import Entry, Recommendation, leaderboard, recommend
from sharedspan.diagnosis.losses import loss_of, score_names
from sharedspan.diagnosis.split_runs import FEWEST_SPLITS, SplitRows, is_complete, run_splits
from sharedspan.diagnosis.text import count, listed
from sharedspan.diagnosis.verdict import SharingVerdict
from sharedspan.estimators.base import TaskEstimator
from sharedspan.estimators.preparation import prepared_rows
from sharedspan.families import (
    Binomial,
    Counts,
    Family,
    Gaussian,
    Poisson,
    family_of,
    suggested_family,
)
from sharedspan.inputs.classes import coded_words
from sharedspan.inputs.columns import Columns
from sharedspan.inputs.frame_table import row_labels
from sharedspan.inputs.frames import as_table, column_names, find_task_column, without_columns
from sharedspan.inputs.labels import given_labels
from sharedspan.inputs.rows import validate_rows
from sharedspan.persistence.atomic_write import atomic_path
from sharedspan.progress import ProgressCallback, current_progress

LEADERBOARD = {  # columns of the written leaderboard, and the corresponding fields of an entry
    "rank": "rank", "method": "method", "test_rmse": "rmse", "difference_to_best": "difference",
    "standard_error": "standard_error", "fit_seconds": "seconds", "failure": "failure",
    "note": "note", "equal_to": "equal_to",
}  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """The leaderboard, best first and failed methods last, and which method to use.

    ``entries`` has every method that was fitted; printed tables show methods with the same
    predictions as one row.
    """

    entries: tuple[Entry, ...]
    recommended: str | None
    advice: str
    n_rows: int
    n_tasks: int
    n_features: int
    n_small_tasks: int  # fitted and not scored, with fewer than FEWEST_ROWS rows
    repeats: int  # splits that were made; fewer than asked for if time was short
    seed: int
    family: str = "gaussian"  # of the responses, and so of the loss
    notes: tuple[str, ...] = ()  # on the family and on the time limit
    sharing: SharingVerdict | None = None  # None without a simpler model to compare with
    left_out: tuple[str, ...] = ()  # methods for which there was no time
    python: str = ""  # lines that fit the recommended method, if that is no estimator

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the scores, the loss that methods are ranked by first."""
        return tuple(score_names(family_of(self.family)))

    @property
    def title(self) -> str:
        """The size of the table."""
        sizes = {"task": self.n_tasks, "row": self.n_rows, "feature": self.n_features}
        return ", ".join(count(n, noun) for noun, n in sizes.items())

    @property
    def caption(self) -> str:
        """How the numbers of the leaderboard were computed."""
        caption = f"{self.repeats} splits, a quarter of each task's rows held out"
        if any(entry.standard_error for entry in self.entries):
            caption += "; ± standard error of the difference, from the variation between tasks"
        return f"{caption}."

    def header(self) -> tuple[str, ...]:
        """The names of the columns of a printed leaderboard."""
        loss, *others = self.columns
        return "rank", "method", f"test {loss}", *others, "above the best", "fit seconds"

    def rows(self) -> Iterator[tuple[Entry, tuple[str, ...]]]:
        """Entries with their cells; methods with the same predictions are one row."""
        for entry in self.entries:
            if entry.equal_to is None:
                equal, label = self._equal_to(entry), entry.method
                if equal:
                    label += f" = {equal[0] if len(equal) == 1 else f'{len(equal)} others'}"
                yield entry, entry.cells(self.columns[1:], label)

    def _equal_to(self, entry: Entry) -> list[str]:
        return [other.method for other in self.entries if other.equal_to == entry.method]

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain Python types, without NaN: ready for JSON."""
        values = asdict(self)
        for entry in values["entries"]:
            del entry["task_losses"]
        return values

    def write_csv(self, path: str | Path) -> None:
        """Write the leaderboard to a file; cells without a number are empty."""
        with (
            atomic_path(Path(path)) as hidden,
            hidden.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.writer(file)
            others = self.columns if self.family != "gaussian" else ()
            writer.writerow([*LEADERBOARD, *(name.lower().replace(" ", "_") for name in others)])
            for entry in self.entries:
                values = asdict(entry)
                row = [values[name] for name in LEADERBOARD.values()]
                writer.writerow([*row, *(entry.scores.get(name) for name in others)])

    def remarks(self) -> list[str]:
        """Sentences below the leaderboard: equal methods, failures, warnings and what is absent."""
        lines = list(self.notes)
        for entry in self.entries:
            if equal := self._equal_to(entry):
                predict = "predicts" if len(equal) == 1 else "predict"
                lines.append(f"{listed(equal)} {predict} the same as {entry.method}.")
        lines += [f"{e.method} failed: {e.failure}." for e in self.entries if e.failure]
        for note in dict.fromkeys(e.note for e in self.entries if e.note):
            methods = listed(e.method for e in self.entries if e.note == note)
            lines.append(f"{methods} warned: {note}.")
        lines += [
            f"{e.method} did not converge {e.unconverged}, so its error may be too large."
            for e in self.entries
            if e.unconverged
        ]
        lines += [
            f"{e.method} is unstable on these rows: {e.unstable}."
            for e in self.entries
            if e.unstable and e.equal_to is None
        ]
        if small := self.n_small_tasks:
            lines.append(
                f"{count(small, 'task')} with fewer than {FEWEST_ROWS} rows "
                f"{'was' if small == 1 else 'were'} fitted but not scored: a split needs a row to "
                "fit and a row to predict."
            )
        return lines

    def __str__(self) -> str:
        rows = [self.header(), *(cells for _, cells in self.rows())]
        width = max(22, *(len(row[1]) for row in rows))
        more = "  {:>11}" * (len(self.columns) - 1)
        style = f"{{:>4}}  {{:<{width}}}  {{:>13}}{more}  {{:>20}}  {{:>11}}"
        lines = [style.format(*row) for row in rows]
        return "\n".join([*lines, *self.remarks(), self.advice, *self.python.splitlines()])

    def _repr_html_(self) -> str:
        from sharedspan.inference.summary_markup import sections_html
        from sharedspan.inference.summary_tables import Lines, SummaryTable

        rows = list(self.rows())
        chosen = [i for i, (entry, _) in enumerate(rows) if entry.method == self.recommended]
        table = SummaryTable(
            self.title, self.header(), tuple(cells for _, cells in rows), labels=2, bold=(*chosen,)
        )
        remarks = [self.caption, *self.remarks(), self.advice, *self.python.splitlines()]
        return sections_html([table, Lines("", tuple(("", text) for text in remarks))])


def compare(
    X: Any,
    y: Any,
    task: Any = None,
    *,
    task_column: Any = None,
    repeats: int = 4,
    seed: int = 0,
    methods: Sequence[str] | str | None = None,
    time_limit: float | None = None,
    progress: ProgressCallback | None = None,
    tick: ProgressCallback | None = None,
    family: str = "auto",
    columns: Columns | None = None,
) -> Comparison:
    """Fit methods on repeated splits within tasks and rank them by their test error.

    Parameters
    ----------
    X : array-like or frame of shape (rows, d)
    y : array-like of shape (rows,)
        Numbers, or two words, such as "no" and "yes".
    task : array-like of shape (rows,)
        One label per row.
    task_column : str, or tuple of str, optional
        The column of a frame X that holds the labels, in the place of ``task``. With a tuple of
        columns, outer groups first, each combination of their values is a task.
    repeats : int, default=4
        Splits, at least two. Each holds out a quarter of the rows of every task, and the first four
        hold out each row once, as the report does. Of a task of two or three rows a split holds out
        one or none. Tasks of one row are fitted, but not scored.
    seed : int, default=0
        Seed of the splits and of the estimators.
    methods : sequence of str, or "all", optional
        Names of estimators of the package. None compares a ridge regression that ignores tasks
        ("one model ignoring tasks"), common slopes with an intercept for each task
        (PooledRegressor), separate models (PerTaskRegressor), the adaptive model
        (AdaptiveSpanRegressor) and the shared span (SharedSpanRegressor), or for classes and counts
        the methods that take their place. "all" adds every other method that suits the responses.
    time_limit : float, optional
        Seconds after which no further fit starts. Methods that were not fitted to two splits by
        then are left out, and there may be fewer splits than ``repeats``; ``left_out``,
        ``repeats`` and ``notes`` of the result say so. A fit that has begun is completed, so the
        comparison may take longer. None sets no limit.
    progress : callable, optional
        Called before each fit with the name of the method, the number of finished fits and the
        number of all fits.
    tick : callable, optional
        Deprecated: the old name of ``progress``.
    family : {"auto", "gaussian", "binomial", "poisson", "negative_binomial"}, default="auto"
        The family of the responses. "auto" looks at the values of y and takes 0 and 1, or two
        words, as "binomial", counts as "negative_binomial" and everything else as "gaussian", as
        ``sharedspan fit`` does. Methods are ranked by root mean squared errors of normal
        responses, the log loss of classes, the mean Poisson deviance of "poisson", and of
        "negative_binomial" the mean deviance of counts whose variance is the mean plus its square.
        The models compared are of this family. For classes and counts common slopes are
        scikit-learn's logistic or Poisson regression with an intercept per task ("pooled GLM"), and
        separate models are one such regression per task ("separate GLMs"). "all" adds the normal
        model, whose means are clipped to possible values, and of counts the other family.
    columns : Columns, optional
        How the columns of a frame become features; levels, means and knots are learned from all
        rows. None applies the defaults where columns are not numbers.

    Returns
    -------
    Comparison
        A method that raises or does not converge is listed as failed, with its reason and without
        a rank. A regression of scikit-learn that does not converge has a rank, and is marked.
    """
    progress = current_progress(progress, tick)
    if repeats < FEWEST_SPLITS:
        raise ValueError(f"repeats={repeats} must be at least 2: one split has no standard error.")
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"time_limit={time_limit} must be a positive number of seconds, or None.")
    X, task = _with_labels(as_table(X), task, task_column)
    y, words = coded_words(y)
    is_named = column_names(X) is not None or columns is not None
    X, y, task, learned = prepared_rows(X, y, task, columns)
    classes = words or getattr(learned, "classes", ())
    tasks = validate_rows(X, y, task)
    size = np.diff(tasks.starts)
    large = size >= FEWEST_ROWS
    n_tasks = int(large.sum())
    if n_tasks < 2:
        have = "has" if 1 in (n_tasks, tasks.n_tasks) else "have"
        raise ValueError(
            f"{n_tasks} of {count(tasks.n_tasks, 'task')} {have} at least {FEWEST_ROWS} rows, but "
            "a comparison needs at least two such tasks: give more rows, or another task column. A "
            "fit (`sharedspan fit`) also accepts tasks with one row."
        )
    order = np.arange(tasks.n_rows) if tasks.order is None else tasks.order
    X = np.asarray(tasks.X[order], dtype=float)
    y = np.asarray(tasks.y[order], dtype=float)
    looks_like, chosen = suggested_family(y), checked_family(family, y)
    names = chosen_methods(methods, chosen, y)

    def make(name: str) -> Any:
        model = make_estimator(name, seed, chosen)
        inner = getattr(model, "model", model)  # of one that ignores tasks
        if learned is not None and isinstance(inner, TaskEstimator):
            inner.set_params(columns=learned)
        return model

    features = learned.names if learned is not None else tasks.names
    if not is_named or len(set(features)) < len(features):
        features = ()  # of arrays, and of names that no frame can have
    runs = run_splits(
        SplitRows(X, y, np.repeat(np.arange(len(size)), size), chosen, features), names, make,
        repeats=repeats, seed=seed, time_limit=time_limit, progress=progress,
        first=default_methods(chosen, y) if isinstance(methods, str) else names,
    )  # fmt: skip
    left_out = tuple(n for n, run in runs.items() if not (run.error or is_complete(run)))
    listed_runs = {name: run for name, run in runs.items() if name not in left_out}
    counts = [len(run.rmse) for run in listed_runs.values() if run.error is None]
    made = max(counts, default=repeats if listed_runs else 0)
    entries = leaderboard(listed_runs, adaptive_methods(chosen))
    if entries:
        choice = recommend(entries, family=chosen)
    else:
        choice = Recommendation(
            None, "No method completed two splits in the time limit: allow more time."
        )
    is_coded = learned is not None and learned.names != learned.column_of
    return Comparison(
        entries, choice.method, choice.advice, sharing=choice.sharing, family=chosen.name,
        notes=(
            *_notes(family, chosen, looks_like, names, classes),
            *_absent(left_out, made, repeats, time_limit),
        ),
        python="" if choice.method is None else python_lines(choice.method, chosen, is_coded),
        n_rows=int(size[large].sum()), n_tasks=n_tasks, n_features=tasks.n_features,
        n_small_tasks=tasks.n_tasks - n_tasks, repeats=made, seed=seed, left_out=left_out,
    )  # fmt: skip


def _with_labels(X: Any, task: Any, task_column: Any) -> tuple[Any, Any]:
    """Features and labels; raise for a text in the place of labels."""
    names = column_names(X)
    if isinstance(task, str):
        advice = "give its values, or task_column= with the name of a column of a frame X"
        if names is not None and task in names:
            advice = f"for the labels in that column of X give task_column={task!r}, or X[{task!r}]"
        raise ValueError(f"task={task!r} is a string, but task takes one label per row: {advice}.")
    if task_column is None:
        if task is None:
            raise TypeError("A comparison needs the tasks: give task= or task_column=.")
        return X, task
    if names is None:
        raise ValueError("task_column= needs a frame, but X is an array: give task=.")
    labels = given_labels(task, row_labels(X, task_column), task_column)
    places = task_column
    if not isinstance(task_column, tuple) or task_column in names:
        places = (find_task_column(names, task_column),)
    return without_columns(X, places), labels


def _notes(
    given: str, chosen: Family, looks_like: str, methods: Sequence[str], classes: Sequence[str]
) -> Iterator[str]:
    """Sentences on the family: how it was chosen, what its methods are, or a better one."""
    zero_or_one = "every response is 0 or 1"
    if classes:
        first, second = map(repr, classes)
        zero_or_one = f"every response is {first} or {second}, and {second} counts as 1"
    if given == "auto" and not isinstance(chosen, Gaussian):
        what = zero_or_one if isinstance(chosen, Binomial) else "they are counts"
        yield (
            f"Responses are modelled as {chosen.name}, because {what}: give family='gaussian' "
            "(--family gaussian) to model them as normal."
        )
    if isinstance(chosen, Counts):
        variance = " (of counts whose variance is the mean plus its square)"
        is_poisson = isinstance(chosen, Poisson)
        yield f"Deviance is the {loss_of(chosen).words}{'' if is_poisson else variance}."
    if POOLED in methods and SEPARATE in methods:
        kind = "logistic" if isinstance(chosen, Binomial) else "Poisson"
        yield (
            f"{POOLED!r} is scikit-learn's {kind} regression of all tasks with an intercept for "
            f"each task, and {SEPARATE!r} are one such regression for each task."
        )
    if isinstance(chosen, Gaussian) and looks_like != "gaussian":
        what = zero_or_one if looks_like == "binomial" else "they are counts"
        yield (
            f"Responses are modelled as normal, as family='gaussian' asks, though {what}: give "
            f"family={looks_like!r} (--family {looks_like}) to compare models of such responses."
        )


def _absent(
    left_out: Sequence[str], made: int, repeats: int, time_limit: float | None
) -> Iterator[str]:
    """Sentences on the splits and methods for which the time limit left no room."""
    if left_out:
        yield (
            f"The time limit of {time_limit:g} s left no room for two fits of {listed(left_out)}: "
            "allow more with time_limit= (--time-limit)."
        )
    if 0 < made < repeats and time_limit is not None:
        yield f"The time limit of {time_limit:g} s allowed {made} of {repeats} splits."
        if made < N_FOLDS:
            yield f"`sharedspan report` makes {N_FOLDS}, so its errors will differ a little."
