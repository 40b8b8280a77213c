"""Atomic writing: a file keeps its old content, or none, until the new content is complete."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from sharedspan.inputs.temporary import Temporary


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path``, which replaces it at the end, or is removed after an error.

    The content is on the disk before the name changes. A replaced file passes on its permissions,
    and a symbolic link remains one.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {str(target.parent)!r}")
    replaced = target.exists()
    mode = 0o600 if replaced else 0o666
    temporary = Temporary(target.parent, suffix=path.suffix, mode=mode)
    try:
        yield temporary.path
        with open(temporary.path, "rb+") as file:
            os.fsync(file.fileno())
        if replaced:
            shutil.copymode(target, temporary.path)
        os.replace(temporary.path, target)
    finally:
        temporary.remove()
    with suppress(OSError, AttributeError):  # not every system can open a folder
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)  # so that the new name survives a power failure
        finally:
            os.close(folder)


@contextmanager
def atomic_table(path: Path) -> Iterator[Callable[[Sequence[Any], Sequence[str]], None]]:
    """A function that appends columns to a table, CSV or Parquet by the suffix of ``path``."""
    import pyarrow as pa

    with atomic_path(path) as temporary, ExitStack() as stack:
        writers: list[Any] = []

        def write(columns: Sequence[Any], names: Sequence[str]) -> None:
            table = pa.table(list(columns), names=list(names))
            if not writers:
                writers.append(stack.enter_context(table_writer(temporary, table.schema)))
            writers[0].write_table(table)

        yield write
        if not writers:
            raise ValueError(f"There are no rows to write to {str(path)!r}.")


def table_writer(path: Path, schema: Any, **parquet: Any) -> Any:
    """Arrow's writer of tables to a CSV file, or to a Parquet file with these settings."""
    import pyarrow.csv
    import pyarrow.parquet

    if path.suffix.lower() == ".csv":
        return pyarrow.csv.CSVWriter(path, schema)
    return pyarrow.parquet.ParquetWriter(path, schema, **parquet)


@contextmanager
def atomic_folder(folder: Path, old: Sequence[Path] = ()) -> Iterator[Path]:
    """A temporary folder whose files move to ``folder`` at the end, once ``old`` are deleted."""
    is_new = not folder.exists()
    folder.mkdir(exist_ok=True)
    moved: list[Path] = []
    temporary = None
    try:
        temporary = Temporary(folder)
        yield temporary.path
        for file in old:
            file.unlink()
        for file in sorted(temporary.path.iterdir()):
            moved.append(file.replace(folder / file.name))
    except BaseException:
        for file in moved:
            file.unlink(missing_ok=True)
        if temporary is not None:
            temporary.remove()
        if is_new:
            folder.rmdir()
        raise
    temporary.remove()
