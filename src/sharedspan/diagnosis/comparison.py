"""Which estimator to use on a table: all of them on the same repeated splits.

Each split holds out a quarter of every task's rows. Errors of two estimators on one split share
its luck, so they are compared by their *paired* difference: its mean over splits, and the standard
error of that mean. Splits share rows, so this standard error is a little too small.
"""

from __future__ import annotations

import csv
import importlib
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sharedspan.datasets.simulate import simulate
from sharedspan.inputs.rows import validate_rows

# From the simplest to the most elaborate; names that the package does not have are passed over.
METHODS = (
    "PooledRegressor",
    "PerTaskRegressor",
    "AdaptiveSpanRegressor",
    "SharedSpanRegressor",
    "CurriculumRegressor",
    "MomentRegressor",
    "SpectralRegressor",
    "ARMULRegressor",
    "PenalizedERMRegressor",
)
PREFERRED = "AdaptiveSpanRegressor"  # of those that are equally good
TEST_SHARE = 0.25
FEWEST_ROWS = 4  # of a task: one to hold out, three to fit
COLUMNS = {  # of the written leaderboard, and where they come from
    "rank": "rank",
    "method": "method",
    "test_rmse": "rmse",
    "difference_to_best": "difference",
    "standard_error": "standard_error",
    "fit_seconds": "seconds",
    "failure": "failure",
    "note": "note",
}

Tick = Callable[[str, int, int], None]  # method, fits done, fits in all


@dataclass(frozen=True)
class Entry:
    """One line of the leaderboard; None where there is no number."""

    method: str
    rank: int | None  # 1 is the best; none for a failed one
    rmse: float | None  # mean over splits of the test RMSE
    difference: float | None  # mean over splits, to the best
    standard_error: float | None  # of that mean
    seconds: float | None  # mean of the fits
    failure: str | None  # why it failed
    note: str | None  # what it warned of
    rmse_per_split: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """The leaderboard, best first and failed ones last, and what to make of it."""

    entries: tuple[Entry, ...]
    recommended: str | None
    advice: str
    n_rows: int
    n_tasks: int
    n_features: int
    n_small_tasks: int  # left out, with fewer than FEWEST_ROWS rows
    repeats: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain Python types, without NaN: ready for JSON."""
        return asdict(self)

    def write_csv(self, path: str | Path) -> None:
        """The leaderboard as a file; cells without a number are empty."""
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for entry in self.entries:
                writer.writerow([getattr(entry, name) for name in COLUMNS.values()])

    def __str__(self) -> str:
        lines = [f"{'rank':>4}  {'method':<22}  {'test RMSE':>10}  {'to the best':>20}  seconds"]
        lines += ["  ".join((c[0].rjust(4), c[1].ljust(22), c[2].rjust(10), c[3].rjust(20),
                             c[4].rjust(7))) for c in map(cells, self.entries)]  # fmt: skip
        return "\n".join([*lines, *remarks(self), self.advice])


def cells(entry: Entry) -> tuple[str, str, str, str, str]:
    """An entry as text: rank, method, RMSE, difference and its standard error, seconds."""
    gap = "-"
    if entry.difference is not None and entry.standard_error is not None:
        gap = "best" if entry.rank == 1 else _with_error(entry.difference, entry.standard_error)
    return (
        "-" if entry.rank is None else str(entry.rank),
        entry.method,
        "-" if entry.rmse is None else f"{entry.rmse:#.5g}",
        gap,
        "-" if entry.seconds is None else f"{entry.seconds:.2f}",
    )


def _with_error(value: float, error: float) -> str:
    """Both to the second digit of the error; fewer digits say nothing, more are noise."""
    if not error > 0:
        return f"{value:+.3g}"
    decimals = 1 - math.floor(math.log10(error))
    if not 0 <= decimals <= 6:
        return f"{value:+.2g} ± {error:.1g}"
    return f"{value:+.{decimals}f} ± {error:.{decimals}f}"


def remarks(found: Comparison) -> list[str]:
    """What stands below the leaderboard: failures, warnings and tasks left out."""
    lines = [f"{e.method} failed: {e.failure}." for e in found.entries if e.failure]
    lines += [f"{e.method} warned: {e.note}." for e in found.entries if e.note]
    if found.n_small_tasks:
        lines.append(
            f"{found.n_small_tasks} task(s) with fewer than {FEWEST_ROWS} rows were left out."
        )
    return lines


@dataclass
class _Record:
    """What is known of one method so far."""

    rmse: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    error: str | None = None  # ends its runs
    unconverged: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)

    def failure(self, repeats: int) -> str | None:
        if self.error is not None or not self.unconverged:
            return self.error
        return f"{self.unconverged[0]}, in {len(self.unconverged)} of {repeats} splits"


def compare(
    X: Any,
    y: Any,
    task: Any,
    *,
    repeats: int = 5,
    seed: int = 0,
    methods: Sequence[str] = METHODS,
    tick: Tick | None = None,
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
        Of the splits and of the estimators.
    methods : sequence of str, optional
        Names of estimators of the package, the simplest first.
    tick : callable, optional
        Called before each fit with its name, the fits done and the fits in all.

    Returns
    -------
    Comparison
        One that raises or does not converge is listed as failed, with its reason, and has no rank.
    """
    if repeats < 2:
        raise ValueError(f"repeats={repeats} must be at least 2: one split has no standard error.")
    tasks = validate_rows(X, y, task)
    size = np.diff(tasks.starts)
    code = np.repeat(np.arange(tasks.n_tasks), size)
    large = (size >= FEWEST_ROWS)[code]
    n_tasks = int(np.sum(size >= FEWEST_ROWS))
    if n_tasks < 2:
        raise ValueError(
            f"{n_tasks} of {tasks.n_tasks} task(s) have at least {FEWEST_ROWS} rows, and a "
            "comparison needs two: give more rows, or another task column."
        )
    order = np.arange(len(code)) if tasks.order is None else tasks.order
    rows, code = order[large], code[large]
    X, y = np.asarray(tasks.X[rows], dtype=float), np.asarray(tasks.y[rows], dtype=float)
    known = {name: maker for name in methods if (maker := _maker(name)) is not None}
    _warm_up(known)
    records = {name: _Record() for name in known}
    for repeat in range(repeats):
        held = hold_out(code, np.random.default_rng([seed, repeat]))
        for i, (name, make) in enumerate(known.items()):
            if tick is not None:
                tick(name, repeat * len(known) + i, repeats * len(known))
            if records[name].error is None:
                _run(records[name], make(seed + repeat), X, y, code, held)
    entries = leaderboard(
        {name: record.rmse for name, record in records.items() if len(record.rmse) == repeats},
        {name: record.failure(repeats) for name, record in records.items()},
        {name: record.seconds for name, record in records.items()},
        {name: "; ".join(dict.fromkeys(record.warned)) for name, record in records.items()},
    )
    recommended, advice = advise(entries)
    return Comparison(
        entries=entries,
        recommended=recommended,
        advice=advice,
        n_rows=len(y),
        n_tasks=n_tasks,
        n_features=tasks.n_features,
        n_small_tasks=tasks.n_tasks - n_tasks,
        repeats=repeats,
        seed=seed,
    )


def hold_out(code: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A mask (rows,): a random quarter of each task's rows, rounded down, at least one."""
    shuffled = np.lexsort((rng.random(len(code)), code))  # by task, at random within
    size = np.bincount(code)
    place = np.arange(len(code)) - np.repeat(np.cumsum(size) - size, size)
    quota = np.maximum((size * TEST_SHARE).astype(int), 1)
    held = np.zeros(len(code), dtype=bool)
    held[shuffled] = place < quota[code[shuffled]]
    return held


def leaderboard(
    rmse: dict[str, list[float]],
    failures: dict[str, str | None],
    seconds: dict[str, list[float]],
    notes: dict[str, str],
) -> tuple[Entry, ...]:
    """Entries by mean RMSE, the failed ones last.

    Parameters
    ----------
    rmse : dict of {method: list of float}
        One for each split; a method without them all is absent.
    failures : dict of {method: str or None}
        Every method; None for one that did not fail.
    seconds : dict of {method: list of float}
    notes : dict of {method: str}
    """
    mean = {name: float(np.mean(values)) for name, values in rmse.items()}
    ranked = sorted((name for name in mean if failures[name] is None), key=mean.__getitem__)
    failed = [name for name in failures if name not in ranked]
    out = []
    for place, name in enumerate([*ranked, *failed]):
        difference = error = None
        if ranked and name in rmse:
            gaps = np.subtract(rmse[name], rmse[ranked[0]])
            difference = float(gaps.mean())
            error = float(gaps.std(ddof=1) / math.sqrt(len(gaps)))
        out.append(
            Entry(
                method=name,
                rank=place + 1 if place < len(ranked) else None,
                rmse=mean.get(name),
                difference=difference,
                standard_error=error,
                seconds=float(np.mean(seconds[name])) if seconds.get(name) else None,
                failure=failures[name],
                note=notes.get(name) or None,
                rmse_per_split=tuple(rmse.get(name, ())),
            )
        )
    return tuple(out)


def advise(entries: Sequence[Entry]) -> tuple[str | None, str]:
    """The method to use, and why in one sentence.

    Of those whose mean difference to the best is at most its standard error: the adaptive one,
    or else the simplest, which stands first in METHODS.
    """
    ranked = [entry for entry in entries if entry.rank is not None]
    if not ranked:
        return None, "No estimator could be fitted to this table: the reasons are above."
    tied = [e.method for e in ranked if (e.difference or 0.0) <= (e.standard_error or 0.0)]
    best = ranked[0].method
    chosen = PREFERRED if PREFERRED in tied else min(tied, key=_simplicity)
    others = [name for name in tied if name != chosen]
    if not others:
        return (
            chosen,
            f"Use {chosen}: its test error is the lowest, by more than one standard error.",
        )
    if chosen != best:
        why = "it adapts to what the tasks share" if chosen == PREFERRED else "it is simpler"
        return chosen, (
            f"Use {chosen}: its test error is within one standard error of the best ({best}), and "
            f"{why}."
        )
    return chosen, (
        f"Use {chosen}: its test error is the lowest, though {_and(others)} "
        f"{'is' if len(others) == 1 else 'are'} within one standard error of it."
    )


def _simplicity(name: str) -> int:
    return METHODS.index(name) if name in METHODS else len(METHODS)


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _maker(name: str) -> Callable[[int], Any] | None:
    """How to make the estimator with a seed; None where the package has none of this name."""
    kind = getattr(importlib.import_module("sharedspan"), name, None)
    if kind is None:
        return None
    known = kind().get_params()
    options = {"solver": "auto"} if "solver" in known else {}  # the one that `sharedspan fit` takes
    if "random_state" in known:
        return lambda seed: kind(random_state=seed, **options)
    return lambda seed: kind(**options)


def _warm_up(known: dict[str, Callable[[int], Any]]) -> None:
    """Compile the kernels, so that the times in the table are those of the work."""
    sim = simulate(n_tasks=4, n_features=3, rank=1, n_samples=8, random_state=0)
    for make in known.values():
        _run(_Record(), make(0), sim.X, sim.y, sim.task, sim.task < 0)


def _run(
    record: _Record, model: Any, X: np.ndarray, y: np.ndarray, code: np.ndarray, held: np.ndarray
) -> None:
    """One fit and its error on the held-out rows; nothing that goes wrong gets out."""
    name = type(model).__name__
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            began = time.perf_counter()
            model.fit(X[~held], y[~held], task=code[~held])
            record.seconds.append(time.perf_counter() - began)
            if not held.any():
                return
            rmse = math.sqrt(np.mean((y[held] - model.predict(X[held], task=code[held])) ** 2))
        except Exception as error:  # whatever it is, the others go on
            record.error = _first_sentence(error, name) or type(error).__name__
            return
    if not math.isfinite(rmse):
        record.error = "its predictions are not finite"
        return
    record.rmse.append(rmse)
    converged = bool(getattr(model, "converged_", True))
    said = {_first_sentence(w.message, name): w.category.__name__ for w in caught}
    about = [text for text, kind in said.items() if kind == "ConvergenceWarning"]
    if not converged:
        record.unconverged.append(about[0] if about else "it did not converge")
    record.warned += [text for text in said if converged or text not in about]


def _first_sentence(message: object, speaker: str) -> str:
    """Without its full stop, and without the name of who says it."""
    text = " ".join(str(message).split()).removeprefix(f"{speaker} ")
    return text.split(". ")[0].rstrip(".")
