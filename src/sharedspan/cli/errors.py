"""Users' errors as one-line messages with exit codes, and checks of files before any work."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import click

from sharedspan.cli.interrupt import exit_interrupted, interrupt_came
from sharedspan.cli.output import collected_warnings, printable
from sharedspan.progress import ProgressCallback, progress_bar


class MistakeError(click.ClickException):
    """An error that the user can correct, with a message of one line that ends in a full stop."""

    exit_code = 2

    def format_message(self) -> str:
        text = printable(" ".join(self.message.split()))
        return text if text.endswith((".", "?", "!")) else f"{text}."


@contextmanager
def one_line_usage_errors() -> Iterator[None]:
    """Turn click's errors about arguments and options into one line, without the usage above.

    Ctrl-C that no command has turned into a message exits with 130, too.
    """
    try:
        yield
    except KeyboardInterrupt:
        exit_interrupted()
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # which click 8.1 does not have
            raise
        command = error.ctx.command_path if error.ctx is not None else "sharedspan"
        message = MistakeError(error.format_message()).format_message()
        raise MistakeError(f"{message} See {command} --help.") from error


@contextmanager
def one_line_errors(out: Path | None = None) -> Iterator[None]:
    """Turn errors of the input into one line with exit code 2, and Ctrl-C into exit code 130.

    After Ctrl-C a message states that the output ``out`` was not written.
    """
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        if isinstance(error, KeyboardInterrupt) or interrupt_came():
            exit_interrupted("Stopped." if out is None else f"Stopped. {out} was not written.")
        with _mistakes():
            raise


@contextmanager
def told_work(out: Path | None) -> Iterator[tuple[list[str], ProgressCallback]]:
    """Errors as in ``one_line_errors``, a progress bar, and the warnings, complete at the end."""
    with one_line_errors(out), collected_warnings() as messages, progress_bar() as progress:
        yield messages, progress


@contextmanager
def _mistakes() -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        reason = f": {error}" if str(error) else ""
        raise MistakeError(
            f"The memory of this machine, or what it may take of it, is not enough{reason}."
        ) from error
    except (ValueError, TypeError, ImportError) as error:
        raise MistakeError(str(error)) from error
    except RuntimeError as error:
        from sharedspan.distributed.engine import ClusterError

        if not isinstance(error, ClusterError):
            raise
        raise MistakeError(str(error)) from error
    except OSError as error:
        reason = error.strerror or str(error)
        if error.filename is not None and str(error.filename) not in reason:
            reason = f"{error.filename}: {reason}"
        raise MistakeError(reason) from error


@contextmanager
def write_errors(out: Path) -> Iterator[None]:
    """Turn errors of the operating system into a message that names the output."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise MistakeError(f"{out} could not be written: {reason}") from error


def check_output(
    out: Path | None, *endings: str, inputs: Iterable[str | Path] = (), tables: Sequence[str] = ()
) -> None:
    """Raise if ``out`` cannot be a file with one of the endings, or is one of the inputs.

    The inputs are files; ``tables`` are files, folders or patterns that are expanded to files.
    """
    from sharedspan.inputs.files import find_files

    inputs = [*inputs, *(find_files(tables) if tables else ())]
    if out is None:
        return
    if out.parent.exists() and not out.parent.is_dir():
        raise MistakeError(f"{out.parent} is a file, not a folder: give another path.")
    if not out.parent.is_dir():
        raise MistakeError(f"There is no folder {out.parent}: make it, or give another path.")
    if out.is_dir():
        raise MistakeError(f"{out} is a folder: give the name of a file.")
    if endings and out.suffix.lower() not in endings:
        raise MistakeError(f"{out} must end in {' or '.join(endings)}.")
    if out.exists() and any(os.path.exists(path) and out.samefile(path) for path in inputs):
        raise MistakeError(f"{out} is one of the files to be read: give another name.")
    with write_errors(out), TemporaryFile(dir=os.path.dirname(os.path.realpath(out))):
        pass  # a folder that cannot be written to is told now, not after hours of work


def check_model_output(out: Path, tables: Sequence[str], inputs: Iterable[str | Path] = ()) -> None:
    """Raise unless a model can be written to ``out``, or if it ends like a table or page."""
    from sharedspan.persistence.model_file import MODEL_FORMAT

    if out.suffix.lower() in (".csv", ".parquet", ".html"):
        raise MistakeError(
            f"{out} would hold a model, not a table or a page: end its name in .span. A table of "
            "the coefficients is written by `sharedspan fit` with --coefficients."
        )
    check_output(out, inputs=inputs, tables=tables)
    MODEL_FORMAT.require_writable(out)


def read_model(path: Path) -> Any:
    """Load a model; the error about a missing file suggests the most similar name."""
    from sharedspan.inputs.files import nearest_file
    from sharedspan.persistence.model_file import load

    if not path.exists():
        near = [other.name for other in path.parent.glob("*.span")]
        raise MistakeError(f"There is no model file {path}.{nearest_file(path.name, near)}")
    return load(path)
