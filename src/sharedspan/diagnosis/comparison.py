"""Comparison of all estimators on the same repeated splits of a table.

Each split holds out a quarter of every task's rows. Errors of two estimators on one split are
correlated, so they are compared by their *paired* difference: its mean over splits, and the
standard error of that mean. Splits share rows, so this standard error is a little too small.
"""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sharedspan.diagnosis.advice import advice_on_target
from sharedspan.diagnosis.holdout_errors import FEWEST_ROWS, fit_and_predict, random_folds
from sharedspan.diagnosis.losses import RMSE, score_names, scores
from sharedspan.diagnosis.text import listed
from sharedspan.estimators import ESTIMATORS, estimator_class
from sharedspan.estimators.base import TaskEstimator
from sharedspan.estimators.glm_baselines import GLMBaseline
from sharedspan.estimators.preparation import prepared_rows
from sharedspan.families import Binomial, Family, Gaussian, family_of, suggested_family
from sharedspan.inputs.columns import Columns
from sharedspan.inputs.rows import validate_rows
from sharedspan.progress import ProgressCallback, current_progress

_BASELINES = [name for name, module in ESTIMATORS.items() if module.endswith(".baselines")]
_OTHERS = ("NewTaskRegressor", "AdaptiveSpanClassifier", "SharedSpanClassifier")
# The simplest first. NewTaskRegressor is for tasks that come after a fit, so it is not compared.
COMPARED = (*_BASELINES, *(n for n in ESTIMATORS if n not in (*_BASELINES, *_OTHERS)))
PREFERRED: tuple[str, ...] = ("AdaptiveSpanRegressor",)  # among methods that are equally good
POOLED, SEPARATE = "pooled GLM", "separate GLMs"  # of scikit-learn, see estimators/glm_baselines.py
COMPARED_CLASSES = (
    POOLED, SEPARATE, "AdaptiveSpanRegressor", "SharedSpanClassifier", "AdaptiveSpanClassifier",
)  # fmt: skip
FAMILY_MODELS = {  # methods that are an estimator with another family
    f"AdaptiveSpanRegressor(family={name!r})": name
    for name in ("binomial", "poisson", "negative_binomial")
}
COMPARED_SHARES = (POOLED, SEPARATE, "AdaptiveSpanRegressor", *list(FAMILY_MODELS)[:1])
COMPARED_COUNTS = (POOLED, SEPARATE, "AdaptiveSpanRegressor", *list(FAMILY_MODELS)[1:])
COMPARED_FAMILIES = ("gaussian", *FAMILY_MODELS.values())
LEADERBOARD = {  # columns of the written leaderboard, and the corresponding fields of an entry
    "rank": "rank", "method": "method", "test_rmse": "rmse", "difference_to_best": "difference",
    "standard_error": "standard_error", "fit_seconds": "seconds", "failure": "failure",
    "note": "note",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One line of the leaderboard; a number that does not exist is None."""

    method: str
    rank: int | None  # 1 is the best; a failed method has none
    rmse: float | None  # mean over splits of the test RMSE
    difference: float | None  # mean over splits of the RMSE minus the best method's
    standard_error: float | None  # of this mean difference
    seconds: float | None  # mean time of a fit
    failure: str | None  # why the method failed
    note: str | None  # the warnings of its fits
    rmse_per_split: tuple[float, ...]
    # Means over splits of other scores, for classes and counts: their loss, which takes the place
    # of the RMSE, and for classes AUC and Brier score.
    scores: Mapping[str, float] = field(default_factory=dict)
    loss_per_split: tuple[float, ...] = ()  # equal to rmse_per_split unless there are scores

    def cells(self, others: Sequence[str] = ()) -> tuple[str, ...]:
        """The entry as text: rank, method, loss, difference with its standard error, seconds.

        ``others`` are further scores, between the loss and the difference.
        """
        loss = next(iter(self.scores.values()), self.rmse)
        rank, shown, seconds = (
            "-" if value is None else format(value, style)
            for value, style in ((self.rank, "d"), (loss, "#.5g"), (self.seconds, ".2f"))
        )
        more = (f"{self.scores[name]:#.4g}" if name in self.scores else "-" for name in others)
        difference = "best" if self.rank == 1 else self._difference_with_error()
        return rank, self.method, shown, *more, difference, seconds

    def _difference_with_error(self) -> str:
        """The difference and its error, both rounded to the second digit of the error."""
        if self.difference is None or self.standard_error is None:
            return "-"
        if not self.standard_error > 0:
            return f"{self.difference:+.3g}"
        decimals = 1 - math.floor(math.log10(self.standard_error))
        if not 0 <= decimals <= 6:
            return f"{self.difference:+.2g} ± {self.standard_error:.1g}"
        return f"{self.difference:+.{decimals}f} ± {self.standard_error:.{decimals}f}"


@dataclass(frozen=True)
class Comparison:
    """The leaderboard, best first and failed methods last, and which method to use."""

    entries: tuple[Entry, ...]
    recommended: str | None
    advice: str
    n_rows: int
    n_tasks: int
    n_features: int
    n_small_tasks: int  # left out, with fewer than FEWEST_ROWS rows
    repeats: int
    seed: int
    family: str = "gaussian"  # of the responses, and so of the loss
    notes: tuple[str, ...] = ()  # on the family

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the scores, the loss that methods are ranked by first."""
        return tuple(score_names(family_of(self.family)))

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain Python types, without NaN: ready for JSON."""
        return asdict(self)

    def write_csv(self, path: str | Path) -> None:
        """Write the leaderboard to a file; cells without a number are empty."""
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            others = self.columns if self.family != "gaussian" else ()
            writer.writerow([*LEADERBOARD, *(name.lower().replace(" ", "_") for name in others)])
            for entry in self.entries:
                values = asdict(entry)
                row = [values[name] for name in LEADERBOARD.values()]
                writer.writerow([*row, *(entry.scores.get(name) for name in others)])

    def remarks(self) -> list[str]:
        """Sentences below the leaderboard: failures, warnings and tasks left out."""
        lines = list(self.notes)
        lines += [f"{e.method} failed: {e.failure}." for e in self.entries if e.failure]
        lines += [f"{e.method} warned: {e.note}." for e in self.entries if e.note]
        if small := self.n_small_tasks:
            lines.append(f"{small} task(s) with fewer than {FEWEST_ROWS} rows were left out.")
        return lines

    def __str__(self) -> str:
        loss, *others = self.columns
        rows: list[tuple[str, ...]] = [
            ("rank", "method", f"test {loss}", *others, "to the best", "seconds")
        ]
        rows += [entry.cells(others) for entry in self.entries]
        width = max(22, *(len(row[1]) for row in rows))
        more = "  {:>11}" * len(others)
        style = f"{{:>4}}  {{:<{width}}}  {{:>13}}{more}  {{:>20}}  {{:>7}}"
        lines = [style.format(*row) for row in rows]
        return "\n".join([*lines, *self.remarks(), self.advice])


@dataclass
class Runs:
    """The test errors, times and messages of one method, split by split."""

    rmse: list[float] = field(default_factory=list)
    scores: list[dict[str, float]] = field(default_factory=list)  # of classes and counts
    seconds: list[float] = field(default_factory=list)
    error: str | None = None  # of an exception, which ends the runs of the method
    unconverged: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)

    @property
    def loss(self) -> list[float]:
        """The losses by which methods are ranked: the first of the scores, or the RMSE."""
        return [next(iter(each.values())) for each in self.scores] or self.rmse

    @property
    def failure(self) -> str | None:
        """The reason why the method failed, or None."""
        if self.error is not None or not self.unconverged:
            return self.error
        return f"{self.unconverged[0]}, in {len(self.unconverged)} of {len(self.rmse)} splits"


def compare(
    X: Any,
    y: Any,
    task: Any,
    *,
    repeats: int = 5,
    seed: int = 0,
    methods: Sequence[str] | None = None,
    progress: ProgressCallback | None = None,
    tick: ProgressCallback | None = None,
    family: str = "auto",
    columns: Columns | None = None,
) -> Comparison:
    """Fit every estimator on repeated splits within tasks and rank them by their test error.

    Parameters
    ----------
    X : array-like or frame of shape (rows, d)
    y : array-like of shape (rows,)
    task : array-like of shape (rows,)
    repeats : int, default=5
        Splits, at least two. Each holds out a quarter of the rows of every task that has at least
        four rows; smaller tasks are left out.
    seed : int, default=0
        Seed of the splits and of the estimators.
    methods : sequence of str, optional
        Names of estimators of the package; other names are ignored. None takes all that suit the
        responses.
    progress : callable, optional
        Called before each fit with the name of the method, the number of finished fits and the
        number of all fits.
    tick : callable, optional
        Deprecated: the old name of ``progress``.
    family : {"auto", "gaussian", "binomial", "poisson", "negative_binomial"}, default="auto"
        The family of the responses. Methods are ranked by root mean squared errors of normal
        responses, the log loss of classes 0 and 1, and the mean Poisson deviance of counts.
        "auto" looks at the values of y. Classes and counts are also predicted by scikit-learn's
        logistic or Poisson regression ("pooled GLM", with an intercept per task, and "separate
        GLMs"), and by the normal model, whose means are clipped to possible values.
    columns : Columns, optional
        How the columns of a frame become features; levels, means and knots are learned from all
        rows. None applies the defaults where columns are not numbers.

    Returns
    -------
    Comparison
        A method that raises or does not converge is listed as failed, with its reason and without
        a rank.
    """
    progress = current_progress(progress, tick)
    if repeats < 2:
        raise ValueError(f"repeats={repeats} must be at least 2: one split has no standard error.")
    X, y, task, learned = prepared_rows(X, y, task, columns)
    tasks = validate_rows(X, y, task)
    size = np.diff(tasks.starts)
    large = size >= FEWEST_ROWS
    n_tasks = int(large.sum())
    if n_tasks < 2:
        raise ValueError(
            f"{n_tasks} of {tasks.n_tasks} task(s) have at least {FEWEST_ROWS} rows, but a "
            "comparison needs two such tasks: give more rows, or another task column."
        )
    order = np.arange(tasks.n_rows) if tasks.order is None else tasks.order
    rows, size = order[np.repeat(large, size)], size[large]
    X, y = np.asarray(tasks.X[rows], dtype=float), np.asarray(tasks.y[rows], dtype=float)
    code = np.repeat(np.arange(n_tasks), size)
    looks_like, chosen = suggested_family(y), _checked_family(family, y)
    methods = _methods(chosen, y) if methods is None else methods
    known = {*ESTIMATORS, *FAMILY_MODELS, POOLED, SEPARATE}
    runs = {name: Runs() for name in methods if name in known}
    _compile_kernels(list(runs), chosen)
    for repeat in range(repeats):
        held = random_folds(size, np.random.default_rng([seed, repeat])) == 0
        for i, name in enumerate(runs):
            progress(name, repeat * len(runs) + i, repeats * len(runs))
            if runs[name].error is None:
                model = _estimator(name, seed + repeat, chosen)
                if learned is not None and isinstance(model, TaskEstimator):
                    model.set_params(columns=learned)
                _run(runs[name], model, X, y, code, held, chosen)
    entries, preferred = leaderboard(runs), PREFERRED
    if not isinstance(chosen, Gaussian):
        preferred = ("AdaptiveSpanClassifier", *FAMILY_MODELS)
    return Comparison(
        entries, *recommend(entries, preferred, tuple(runs)), family=chosen.name,
        notes=tuple(_notes(family, chosen, looks_like)),
        n_rows=len(y), n_tasks=n_tasks, n_features=tasks.n_features,
        n_small_tasks=tasks.n_tasks - n_tasks, repeats=repeats, seed=seed,
    )  # fmt: skip


def leaderboard(runs: Mapping[str, Runs]) -> tuple[Entry, ...]:
    """Entries by mean loss over all splits, the failed methods last."""
    mean = {name: float(np.mean(run.loss)) for name, run in runs.items() if run.error is None}
    ranked = sorted((name for name in mean if not runs[name].failure), key=mean.__getitem__)
    entries = []
    for name in [*ranked, *(name for name in runs if name not in ranked)]:
        run, difference, error = runs[name], None, None
        if ranked and name in mean:
            differences = np.subtract(run.loss, runs[ranked[0]].loss)
            difference = float(differences.mean())
            error = float(differences.std(ddof=1) / math.sqrt(len(differences)))
        entry = Entry(
            method=name,
            rank=ranked.index(name) + 1 if name in ranked else None,
            rmse=float(np.mean(run.rmse)) if name in mean else None,
            difference=difference,
            standard_error=error,
            seconds=float(np.mean(run.seconds)) if run.seconds else None,
            failure=run.failure,
            note="; ".join(dict.fromkeys(run.warned)) or None,
            rmse_per_split=tuple(run.rmse) if name in mean else (),
            scores=_mean_scores(run) if name in mean else {},
            loss_per_split=tuple(run.loss) if name in mean else (),
        )
        entries.append(entry)
    return tuple(entries)


def _mean_scores(run: Runs) -> dict[str, float]:
    """Means of the scores over the splits that have them."""
    names = dict.fromkeys(name for each in run.scores for name in each)
    return {name: float(np.mean([s[name] for s in run.scores if name in s])) for name in names}


def recommend(
    entries: Sequence[Entry],
    preferred: Sequence[str] = PREFERRED,
    order: Sequence[str] = COMPARED,
) -> tuple[str | None, str]:
    """The method to use, and a sentence with the reason.

    Among the methods whose mean difference to the best is at most its standard error, this is the
    adaptive one, or else the simplest, which is the first of them in ``order``.
    """
    ranked = [entry for entry in entries if entry.rank is not None]
    if not ranked:
        return None, "No estimator could be fitted to this table: the reasons are above."
    tied = [e.method for e in ranked if (e.difference or 0.0) <= (e.standard_error or 0.0)]
    adaptive = [name for name in tied if name in preferred]
    method = adaptive[0] if adaptive else min(tied, key=[*order, *tied].index)
    others = [name for name in tied if name != method]
    if not others:
        why = "the lowest, by more than one standard error"
    elif method != tied[0]:
        reason = "it adapts to what the tasks share" if adaptive else "it is simpler"
        why = f"within one standard error of the best ({tied[0]}), and {reason}"
    else:
        verb = "is" if len(others) == 1 else "are"
        why = f"the lowest, though {listed(others)} {verb} within one standard error of it"
    return method, f"Use {method}: its test error is {why}."


def _checked_family(name: str, y: np.ndarray) -> Family:
    """The family of a name, or the one that y looks like; raise if y cannot be of it."""
    if name not in ("auto", *COMPARED_FAMILIES):
        known = ", ".join(map(repr, ("auto", *COMPARED_FAMILIES)))
        raise ValueError(f"family={name!r} is unknown: use one of {known}.")
    family = family_of(suggested_family(y) if name == "auto" else name)
    valid = family.is_valid(y)
    if not valid.all():
        raise ValueError(
            f"family={family.name!r} needs {family.needs}; y has {y[np.argmin(valid)]:g}."
        )
    return family


def _methods(family: Family, y: np.ndarray) -> tuple[str, ...]:
    """The methods for responses of a family, the simplest first."""
    if isinstance(family, Gaussian):
        return COMPARED
    if isinstance(family, Binomial):
        return COMPARED_CLASSES if np.isin(y, (0, 1)).all() else COMPARED_SHARES
    return COMPARED_COUNTS


def _notes(given: str, chosen: Family, looks_like: str) -> Iterator[str]:
    """Sentences on the family: how it was chosen, or that another one seems better."""
    if given == "auto" and not isinstance(chosen, Gaussian):
        what = "every response is 0 or 1" if isinstance(chosen, Binomial) else "they are counts"
        yield (
            f"Responses are taken as {chosen.name}, because {what}; family='gaussian' (--family "
            "gaussian) compares errors of normal ones."
        )
    if isinstance(chosen, Gaussian):
        advice = advice_on_target(looks_like, "every method here")
        if advice is not None:
            yield advice


def _estimator(name: str, seed: int, family: Family) -> Any:
    """The estimator with default parameters, and with this seed if it has one."""
    if name in (POOLED, SEPARATE):
        return GLMBaseline(family, per_task=name == SEPARATE)
    if name in FAMILY_MODELS:
        adaptive: Any = estimator_class("AdaptiveSpanRegressor")
        return adaptive(family=FAMILY_MODELS[name], random_state=seed)
    model: Any = estimator_class(name)()
    return model.set_params(random_state=seed) if "random_state" in model.get_params() else model


def _compile_kernels(methods: Sequence[str], family: Family) -> None:
    """Fit every method to a few rows, so that later times do not include compilation."""
    rng = np.random.default_rng(0)
    X, noise = rng.standard_normal((32, 3)), rng.standard_normal(32)
    y = X[:, 0] + noise
    if not isinstance(family, Gaussian):
        y = (y > 0).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in methods:
            with suppress(Exception):  # the fit to the table raises and reports it as well
                _estimator(name, 0, family).fit(X, y, task=np.repeat(np.arange(4), 8))


def _run(
    runs: Runs, model: Any, X: np.ndarray, y: np.ndarray, code: np.ndarray, held: np.ndarray,
    family: Family,
) -> None:  # fmt: skip
    """Fit once and add the error on the held-out rows, or the exception, to the runs."""
    name = type(model).__name__
    try:
        means, seconds, caught = fit_and_predict(model, X, y, code, held)
        runs.seconds.append(seconds)
        rmse = RMSE.of(y[held], means)
        if not math.isfinite(rmse):
            raise ArithmeticError("its predictions are not finite")
    except Exception as error:  # any exception: the other methods continue
        runs.error = _first_sentence(error, name) or type(error).__name__
        return
    runs.rmse.append(rmse)
    if not isinstance(family, Gaussian):
        runs.scores.append(scores(family, y[held], means))
    converged = isinstance(model, GLMBaseline) or model.fitted_span.converged in (None, True)
    messages = {_first_sentence(w.message, name): w.category.__name__ for w in caught}
    reasons = [text for text, kind in messages.items() if kind == "ConvergenceWarning"]
    if not converged:
        runs.unconverged.append(reasons[0] if reasons else "it did not converge")
    runs.warned += [text for text in messages if converged or text not in reasons]


def _first_sentence(message: object, speaker: str) -> str:
    """The first sentence of a message, without its full stop and the name of the estimator."""
    text = " ".join(str(message).split()).removeprefix(f"{speaker} ")
    return text.split(". ")[0].rstrip(".")
