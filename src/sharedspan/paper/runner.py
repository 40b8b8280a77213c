"""Runs the cells of experiments on all cores, keeps what is done, goes on where it stopped."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from sharedspan import __version__
from sharedspan.kernels.threads import n_threads
from sharedspan.paper import table as tables
from sharedspan.paper.problem import Cell
from sharedspan.paper.table import Row, Table, TableError

TIMES = "seconds.csv"
THREADS = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
           "VECLIB_MAXIMUM_THREADS")  # fmt: skip

Tick = Callable[[str, float, float], None]  # experiment, work done, work in all


def experiment(name: str) -> Any:
    """The module of an experiment."""
    return import_module(f"sharedspan.paper.{name}")


def run_cell(cell: Cell) -> list[Row]:
    """The rows of one cell, as a table will give them back."""
    return [tables.rounded(row) for row in experiment(cell.experiment).run(cell)]


class LostWorkerError(RuntimeError):
    """A worker process died; most often for want of memory."""


class Store:
    """The tables of a folder: one for each experiment, and one for what the clock said."""

    def __init__(self, folder: Path, plan: dict[str, list[Cell]]) -> None:
        self.folder, self.plan = folder, plan
        self.done: dict[tuple[Any, ...], list[Row]] = {}
        self.times = tables.read(folder / TIMES).rows
        for name, cells in plan.items():
            self._read(name, {cell.key for cell in cells})

    def _read(self, name: str, planned: set[tuple[Any, ...]]) -> None:
        path = self.folder / f"{name}.csv"
        for row in tables.read(path).rows:
            if row["version"] != __version__:
                raise TableError(
                    f"{path} was written by sharedspan {row['version'] or '?'}, this is "
                    f"{__version__}: give another folder with -o, or remove the file to run again"
                )
            if _key(row) not in planned:
                raise TableError(
                    f"{path} holds runs of another command (--quick, --full or --seed differ): "
                    "give another folder with -o, or remove the file to run again"
                )
            self.done.setdefault(_key(row), []).append(row)

    def missing(self) -> list[Cell]:
        """What is still to run."""
        return [cell for cells in self.plan.values() for cell in cells if cell.key not in self.done]

    def add(self, cell: Cell, rows: list[Row]) -> None:
        """Keep the rows of a cell; the files are whole after every call."""
        timed = [row for row in rows if not math.isnan(row["seconds"])]
        if timed:
            self.times = [r for r in self.times if _key(r) != cell.key] + timed
            tables.write(self.folder / TIMES, self.times)
        self.done[cell.key] = [row | {"seconds": math.nan} for row in rows]
        self._write(cell.experiment)

    def _write(self, name: str) -> None:
        kept = (row for cell in self.plan[name] for row in self.done.get(cell.key, []))
        tables.write(self.folder / f"{name}.csv", kept)

    def table(self, name: str) -> Table:
        """What there is of an experiment, in the order of its grid."""
        return Table(row for cell in self.plan[name] for row in self.done.get(cell.key, []))


def _key(row: Row) -> tuple[Any, ...]:
    names = ("experiment", "part", "d", "T", "k", "N", "noise", "kappa", "seed", "budget")
    return tuple(row[name] for name in names)


def plan(names: Sequence[str], full: bool, seed: int) -> dict[str, list[Cell]]:
    """The cells of these experiments."""
    return {name: experiment(name).cells(full, seed) for name in names}


def complete(store: Store, tick: Tick, run: Callable[[Cell], list[Row]] = run_cell) -> None:
    """Run what is missing, a process for each core, each with one thread of its own."""
    todo = store.missing()
    total = sum(cell.cost for cells in store.plan.values() for cell in cells)
    done = total - sum(cell.cost for cell in todo)
    workers = min(n_threads(), len(todo))
    if not workers:
        return
    tick(todo[0].experiment, done, total)
    with _one_thread_each():
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, context, initializer=_follow_parent)
        waiting: dict[Future[list[Row]], Cell] = {}
        cells = iter(todo)
        try:
            while True:
                # A few ahead, so that no worker waits and little is lost at an interrupt.
                for cell in islice(cells, 2 * workers - len(waiting)):
                    waiting[pool.submit(run, cell)] = cell
                if not waiting:
                    return
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    cell = waiting.pop(future)
                    try:
                        rows = future.result()
                    except BrokenProcessPool as error:
                        raise LostWorkerError from error
                    store.add(cell, rows)
                    done += cell.cost
                    tick(cell.experiment, done, total)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()


def _follow_parent() -> None:
    """Interrupts are the parent's to handle, and without it there is nothing to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _one_thread_each() -> Iterator[None]:
    kept = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
