"""``sharedspan reproduce``: run the missing cells, draw figures, judge claims, write the page.

Cells run on all cores. Every finished cell is saved, so that an interrupted run can be resumed.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from sharedspan import __version__
from sharedspan.kernels.threads import n_threads, one_blas_thread, use_threads
from sharedspan.paper import EXPERIMENTS, FINDINGS, experiment_named
from sharedspan.paper.claims import CLAIMS
from sharedspan.paper.drawing import save_paper_figure
from sharedspan.paper.experiment import Cell, row_key, run_cell
from sharedspan.paper.findings.page import findings_page, paragraphs
from sharedspan.paper.page import results_page
from sharedspan.paper.table import ResultRow, ResultTable, TableError, read_results, write_results
from sharedspan.paper.verdicts import Verdict, judge
from sharedspan.persistence.atomic_write import atomic_path
from sharedspan.progress import ProgressCallback, progress_bar

TIMES = "seconds.csv"
SAVING_INTERVAL = 2.0  # seconds; writing a long table after every cell would take most of the time
STAGE = "seconds of work"  # estimated for one core


class InterruptedRunError(Exception):
    """Ctrl-C; its arguments are the numbers of finished (and saved) and of planned runs."""


class Store:
    """The tables of a folder: one for each experiment, and one of measured times."""

    def __init__(self, folder: Path, plan: dict[str, list[Cell]]) -> None:
        self.folder, self.plan = folder, plan
        self.done: dict[tuple[Any, ...], list[ResultRow]] = {}
        self.times = read_results(folder / TIMES).rows
        self.unsaved: set[str] = set()
        self.saved = -math.inf
        for name, cells in plan.items():
            self._read(folder / f"{name}.csv", {cell.key for cell in cells})

    def _read(self, path: Path, planned: set[tuple[Any, ...]]) -> None:
        for row in read_results(path).rows:
            if row["version"] != __version__:
                raise TableError(
                    f"{path} was written by sharedspan {row['version'] or '?'}, this is "
                    f"{__version__}: give another folder with -o, or remove the file to run again"
                )
            if row_key(row) not in planned:
                raise TableError(
                    f"{path} holds runs of another command (--quick, --full or --seed differ): "
                    "give another folder with -o, or remove the file to run again"
                )
            self.done.setdefault(row_key(row), []).append(row)

    def missing(self) -> list[Cell]:
        """The cells that have not been run yet."""
        return [cell for cells in self.plan.values() for cell in cells if cell.key not in self.done]

    def add(self, cell: Cell, rows: list[ResultRow]) -> None:
        """Take the rows of a cell; tables are written every few seconds, and by ``save``."""
        timed = [row for row in rows if not math.isnan(row["seconds"])]
        if timed:
            self.times = [row for row in self.times if row_key(row) != cell.key] + timed
        self.done[cell.key] = [row | {"seconds": math.nan} for row in rows]
        self.unsaved |= {cell.experiment} | ({TIMES} if timed else set())
        if time.monotonic() > self.saved + SAVING_INTERVAL:
            self.save()

    def save(self) -> None:
        """Write the tables that have new rows."""
        for name in self.unsaved - {TIMES}:
            write_results(self.folder / f"{name}.csv", self.table(name).rows)
        if TIMES in self.unsaved:
            write_results(self.folder / TIMES, self.times)
        self.unsaved, self.saved = set(), time.monotonic()

    def table(self, name: str) -> ResultTable:
        """The finished part of an experiment, in the order of its grid."""
        return ResultTable(row for cell in self.plan[name] for row in self.done.get(cell.key, []))


def run_missing(store: Store, progress: ProgressCallback) -> None:
    """Run the missing cells in one process per core, with one thread each."""
    todo = store.missing()
    if not todo:
        return
    seconds = {cell.key: experiment_named(name).seconds(cell)
               for name, cells in store.plan.items() for cell in cells}  # fmt: skip
    total = sum(seconds.values())
    done = total - sum(seconds[cell.key] for cell in todo)
    progress(STAGE, done, total)
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(n_threads(), len(todo)), context, initializer=_start_worker)
    try:
        with _interrupts_blocked():
            futures = {pool.submit(run_cell, cell): cell for cell in todo}
        for future in as_completed(futures):
            cell = futures[future]
            store.add(cell, future.result())
            done += seconds[cell.key]
            progress(STAGE, done, total)
    finally:
        store.save()
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach, not even while their Python is starting."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker() -> None:
    """Compute with one thread, leave interrupts to the parent process, and exit when it does."""
    use_threads(1)
    one_blas_thread().__enter__()  # until the process ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def reproduce_all(
    names: Sequence[str], *, full: bool, seed: int, folder: Path, command: str
) -> list[Verdict]:
    """Run experiments into tables, draw their figures, judge the claims, write ``results.md``.

    Parameters
    ----------
    names : sequence of str
        Experiments of the registry, ``EXPERIMENTS``.
    full : bool
        Whether to use the grids of the results page, or small ones.
    seed : int
        The first seed.
    folder : Path
        Created if it is missing. Runs resume from the tables in it.
    command : str
        The command that the page names.
    """
    tables = _run(EXPERIMENTS, names, full, seed, folder)
    page = results_page(tables, read_results(folder / TIMES), command)
    with atomic_path(folder / "results.md") as hidden:
        hidden.write_text(page, encoding="utf-8")
    return judge(CLAIMS, tables)


def run_findings(
    names: Sequence[str], *, full: bool, seed: int, folder: Path, command: str
) -> dict[str, str]:
    """Run findings into tables, draw their figures, write ``findings.md``; return the paragraphs.

    Parameters are those of ``reproduce_all``, with names of the registry ``FINDINGS``.
    """
    tables = _run(FINDINGS, names, full, seed, folder)
    with atomic_path(folder / "findings.md") as hidden:
        hidden.write_text(findings_page(tables, command), encoding="utf-8")
    return paragraphs(tables)


def _run(
    registry: Iterable[str], names: Sequence[str], full: bool, seed: int, folder: Path
) -> dict[str, ResultTable]:
    """Run what is missing of these names and draw it; also return complete tables of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=folder):  # raises now, not after the runs, if it cannot be written to
        pass
    plans = {name: experiment_named(name).grid(full, seed) for name in registry}
    store = Store(folder, {name: plans[name] for name in names})
    planned = sum(map(len, store.plan.values()))
    try:
        with progress_bar(transient=False) as progress:
            run_missing(store, progress)
        tables = {name: store.table(name) for name in names}
        for name, table in tables.items():
            save_paper_figure(experiment_named(name).draw(table), folder / f"{name}.png")
        # The page also shows tables of this folder that earlier commands completed.
        for name in plans.keys() - tables.keys():
            with suppress(TableError):
                other = Store(folder, {name: plans[name]})
                if not other.missing():
                    tables[name] = other.table(name)
        return tables
    except KeyboardInterrupt:
        raise InterruptedRunError(planned - len(store.missing()), planned) from None
