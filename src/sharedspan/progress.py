"""Progress callbacks of long work, and the bars that show them on a terminal or in a notebook."""

from __future__ import annotations

import html
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from time import monotonic
from typing import Any

# Called with the name of the stage, how much of it is done and its total (0 if unknown).
ProgressCallback = Callable[[str, float, float], object]

INTERVAL = 0.2  # seconds between two pictures of a bar in a notebook


def no_progress(stage: str, done: float, total: float) -> None:
    """A callback that shows nothing."""


def current_progress(
    progress: ProgressCallback | None, tick: ProgressCallback | None, *, stacklevel: int = 3
) -> ProgressCallback:
    """The callback that a user gave, perhaps by its old name ``tick``; in a notebook, a bar."""
    if tick is not None:
        warnings.warn("tick= is deprecated: use progress=.", FutureWarning, stacklevel=stacklevel)
    return progress or tick or (NotebookBar() if in_notebook() else no_progress)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class NotebookBar:
    """A callback that shows a bar in the output of a notebook's cell.

    It needs no widgets: a piece of HTML is replaced by the next one. ``close`` removes it, or the
    end of its last reference where a function has nobody to close it.

    Parameters
    ----------
    transient : bool
        Whether the bar disappears when it is closed.
    """

    def __init__(self, *, transient: bool = True) -> None:
        self.transient = transient
        self.output: Any = None  # of the cell
        self.state: tuple[str, float, float] = ("", 0, 0)
        self.began = self.shown = 0.0  # the stage, and the last picture

    def __call__(self, stage: str, done: float, total: float) -> None:
        now, is_new = monotonic(), stage != self.state[0]
        self.state = (stage, done, total)
        if is_new:
            self.began = now
        if is_new or now >= self.shown + INTERVAL:
            self.shown = now
            self._show(*bar_forms(*self.state, now - self.began))

    def close(self) -> None:
        """Remove the bar, or show its last state if it is to stay."""
        if self.output is not None:
            forms = ("", "")
            if not self.transient:
                forms = bar_forms(*self.state, monotonic() - self.began)
            self._show(*forms)
            self.output = None

    __del__ = close

    def _show(self, text: str, page: str) -> None:
        bundle = {"text/plain": text, "text/html": page}
        if self.output is None:
            display = import_module("IPython.display").display
            self.output = display(bundle, raw=True, display_id=True)
        else:
            self.output.update(bundle, raw=True)


def bar_forms(stage: str, done: float, total: float, seconds: float) -> tuple[str, str]:
    """A bar as text and as HTML."""
    words, share = [f"{done:,.0f}/{total:,.0f}"] if total else [], ""
    words.append(f"{clock(seconds)} elapsed")
    if total and done:
        words.append(f"about {clock(seconds * (total - done) / done)} remaining")
    if total:
        share = f' value="{done:g}" max="{total:g}"'
    text = ", ".join(words)
    page = (
        '<div style="display:flex;gap:1em;align-items:center">'
        f"<span>{html.escape(stage)}</span><progress{share}></progress><span>{text}</span></div>"
    )
    return f"{stage}: {text}", page


def clock(seconds: float) -> str:
    """A duration as minutes and seconds, or hours, minutes and seconds."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@contextmanager
def progress_bar(*, show: bool = True, transient: bool = True) -> Iterator[ProgressCallback]:
    """A callback that moves a bar, one stage after the other.

    The bar is in the output of a notebook's cell, or on the standard error stream of a terminal.

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
    if in_notebook():
        with closing(NotebookBar(transient=transient)) as notebook_bar:
            yield notebook_bar
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
    if not console.is_terminal:  # where Rich before 14.3 writes an empty line
        yield no_progress
        return
    columns = (
        TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn("remaining"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=transient) as bar:
        stages = {"starting": bar.add_task("starting", total=None)}

        def progress(stage: str, done: float, total: float) -> None:
            if stage not in stages:
                bar.remove_task(stages.popitem()[1])
                stages[stage] = bar.add_task(stage, total=total or None)
            bar.update(stages[stage], completed=done, total=total or None)

        yield progress
