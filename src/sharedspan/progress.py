"""Progress callbacks of long work, and the bar that shows them on a terminal."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Called with the name of the stage, how much of it is done and its total (0 if unknown).
ProgressCallback = Callable[[str, float, float], object]


def no_progress(stage: str, done: float, total: float) -> None:
    """A callback that shows nothing."""


def current_progress(
    progress: ProgressCallback | None, tick: ProgressCallback | None, *, stacklevel: int = 3
) -> ProgressCallback:
    """The callback that a user gave, perhaps by its old name ``tick``."""
    if tick is not None:
        warnings.warn("tick= is deprecated: use progress=.", FutureWarning, stacklevel=stacklevel)
    return progress or tick or no_progress


@contextmanager
def progress_bar(*, show: bool = True, transient: bool = True) -> Iterator[ProgressCallback]:
    """A callback that moves a bar on the standard error stream, one stage after the other.

    Parameters
    ----------
    show : bool
        False gives a callback that does nothing, and imports nothing.
    transient : bool
        Whether the bar disappears when the work is done.
    """
    if not show:
        yield no_progress
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn("remaining"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(
        *columns, console=console, transient=transient, disable=not console.is_terminal
    ) as bar:
        stages = {"starting": bar.add_task("starting", total=None)}

        def progress(stage: str, done: float, total: float) -> None:
            if stage not in stages:
                bar.remove_task(stages.popitem()[1])
                stages[stage] = bar.add_task(stage, total=total or None)
            bar.update(stages[stage], completed=done, total=total or None)

        yield progress
