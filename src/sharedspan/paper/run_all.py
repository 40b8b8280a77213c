"""Everything ``sharedspan reproduce`` does: run, draw, judge, write the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sharedspan.paper import EXPERIMENTS
from sharedspan.paper.claims import Verdict, verdicts
from sharedspan.paper.page import results_page
from sharedspan.paper.runner import TIMES, Store, Tick, complete, experiment, plan
from sharedspan.paper.table import Table, TableError, read


class InterruptedRunError(Exception):
    """Ctrl-C: what is done is kept."""

    def __init__(self, done: int, planned: int) -> None:
        super().__init__(f"{done} of {planned} runs done")
        self.done, self.planned = done, planned


def reproduce_all(
    names: Sequence[str], *, full: bool, seed: int, folder: Path, command: str
) -> list[Verdict]:
    """Run experiments into tables, draw their figures, judge the claims, write ``results.md``.

    Parameters
    ----------
    names : sequence of str
        Of ``EXPERIMENTS``.
    full : bool
        The grids of the results page, or small ones.
    seed : int
        The first seed.
    folder : Path
        Made where it is missing. Tables in it are gone on with.
    command : str
        As the page will name it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".writable").touch()
    (folder / ".writable").unlink()
    store = Store(folder, plan(names, full, seed))
    planned = sum(map(len, store.plan.values()))
    try:
        with progress() as tick:
            complete(store, tick)
        tables = {name: store.table(name) for name in names}
        for name, table in tables.items():
            experiment(name).draw(table, folder / f"{name}.png")
        tables |= _others(names, full, seed, folder)
        page = results_page(tables, read(folder / TIMES), command)
        (folder / "results.md").write_text(page, encoding="utf-8")
        return verdicts(tables)
    except KeyboardInterrupt:
        raise InterruptedRunError(planned - len(store.missing()), planned) from None


def _others(names: Sequence[str], full: bool, seed: int, folder: Path) -> dict[str, Table]:
    """Tables of this folder that earlier commands completed: the page shows them too."""
    found = {}
    for name in EXPERIMENTS:
        if name in names or not (folder / f"{name}.csv").exists():
            continue
        try:
            store = Store(folder, plan([name], full, seed))
        except TableError:
            continue
        if not store.missing():
            found[name] = store.table(name)
    return found


@contextmanager
def progress() -> Iterator[Tick]:
    """A bar with the time that remains, on a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:<12}"), BarColumn(), TaskProgressColumn(),
        TimeElapsedColumn(), TextColumn("remaining"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        job = bar.add_task("starting", total=None)

        def tick(name: str, done: float, total: float) -> None:
            bar.update(job, description=name, completed=done, total=total)

        yield tick
