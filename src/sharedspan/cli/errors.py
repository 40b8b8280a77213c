"""How every command behaves: mistakes in one line, Ctrl-C with a word, progress on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from rich.progress import Progress

Tick = Callable[[str, int, int], None]  # what is done, how far it is, and the end, 0 if unknown


class MistakeError(click.ClickException):
    """What the user can mend, said in one line."""

    exit_code = 2

    def format_message(self) -> str:
        return " ".join(self.message.split())


@contextmanager
def usage_in_one_line() -> Iterator[None]:
    """What click finds wrong with a command, without its usage above."""
    try:
        yield
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        command = error.ctx.command_path if error.ctx is not None else "sharedspan"
        said = error.format_message()
        end = "" if said.endswith(("?", ".")) else "."
        raise MistakeError(f"{said}{end} See {command} --help.") from error


@contextmanager
def manners(when_stopped: str) -> Iterator[None]:
    """Mistakes in one line and with exit code 2, Ctrl-C with what became of the work."""
    try:
        yield
    except KeyboardInterrupt:
        stopped(when_stopped)
    except (ValueError, TypeError, ImportError) as error:
        raise MistakeError(str(error)) from error
    except RuntimeError as error:
        if type(error).__name__ != "ClusterError":
            raise
        raise MistakeError(str(error)) from error
    except OSError as error:
        said = (error.strerror or str(error)).rstrip(".")
        if error.filename is not None and str(error.filename) not in said:
            said = f"{error.filename}: {said}"
        raise MistakeError(f"{said}.") from error


def stopped(message: str) -> NoReturn:
    """Say what became of the work after Ctrl-C; another one changes nothing any more."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    click.echo(f"\n{message}", err=True)
    sys.exit(130)


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Say why a file could not be written."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise MistakeError(f"{out} could not be written: {reason.rstrip('.')}.") from error


def require_out(out: Path | None, *endings: str, apart_from: Any = ()) -> None:
    """Raise where the output cannot be what was asked for, before any work is done."""
    if out is None:
        return
    if out.parent.exists() and not out.parent.is_dir():
        raise MistakeError(f"{out.parent} is a file, not a folder: give another --out.")
    if not out.parent.is_dir():
        raise MistakeError(f"There is no folder {out.parent}: make it or give another --out.")
    if out.is_dir():
        raise MistakeError(f"{out} is a folder: give the name of a file.")
    if endings and out.suffix.lower() not in endings:
        words = " or ".join([", ".join(endings[:-1]), endings[-1]] if endings[1:] else endings)
        raise MistakeError(f"{out} must end in {words}.")
    if out.exists() and any(out.samefile(path) for path in apart_from):
        raise MistakeError(f"{out} is one of the files to be read: give another name.")


def require_model_out(out: Path) -> None:
    """Raise where a model would go by the name of something else."""
    require_out(out)
    if out.suffix.lower() in (".csv", ".parquet", ".html"):
        raise MistakeError(f"{out} would hold a model: end its name in .span.")


def read_model(path: Path) -> Any:
    """The model in a file, whose name may be misspelt."""
    from sharedspan.inputs.files import nearest
    from sharedspan.persistence.model_file import load

    if not path.exists():
        near = [other.name for other in path.parent.glob("*.span")]
        raise MistakeError(f"There is no model file {path}.{nearest(path.name, near)}")
    return load(path)


def shown(name: str, length: int = 60) -> str:
    """A name from a user's table for the terminal: nothing that moves the cursor, and not long."""
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    return plain if len(plain) <= length else plain[: length - 3] + "..."


def require_seed(seed: int) -> None:
    """Raise for a seed that is none."""
    if seed < 0:
        raise MistakeError(f"--seed {seed} must be zero or more.")


def progress_bar() -> Progress:
    """A bar on the standard error, where that is a terminal; gone when it is done."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    words = TextColumn("{task.description:<24}")
    columns = (words, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def ticking() -> Iterator[Tick]:
    """A bar for work of several stages, one after the other."""
    with progress_bar() as progress:
        bars = {"starting": progress.add_task("starting", total=None)}

        def tick(what: str, done: int, total: int) -> None:
            if what not in bars:
                progress.remove_task(bars.popitem()[1])
                bars[what] = progress.add_task(what, total=total or None)
            progress.update(bars[what], completed=done, total=total or None)

        yield tick


class Counted:
    """A tick that remembers how many rows were read."""

    def __init__(self, tick: Tick) -> None:
        self.tick, self.n_rows = tick, 0

    def __call__(self, what: str, done: int, total: int) -> None:
        if what == "reading":
            self.n_rows = total
        self.tick(what, done, total)


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """What is warned of meanwhile, each once; the list is filled at the end."""
    import warnings

    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
    said += dict.fromkeys(" ".join(str(warning.message).split()) for warning in caught)


def echo_json(about: Any) -> None:
    """Print for machines."""
    import json

    click.echo(json.dumps(about, indent=2, allow_nan=False))


def finite(value: Any) -> Any:
    """The same with None for numbers that JSON does not know."""
    import math

    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    return [finite(part) for part in value] if isinstance(value, (list, tuple)) else value
