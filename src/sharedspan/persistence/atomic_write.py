"""Files that appear complete or not at all."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def file_appearing(path: Path) -> Iterator[Path]:
    """A hidden path beside ``path``; what is written there becomes ``path`` at the end."""
    hidden = path.with_name(f".sharedspan-{secrets.token_hex(8)}{path.suffix}")
    try:
        yield hidden
        hidden.replace(path)
    finally:
        hidden.unlink(missing_ok=True)


@contextmanager
def table_appearing(path: Path) -> Iterator[Callable[[Sequence[Any], Sequence[str]], None]]:
    """A function that appends columns of rows to a table, CSV or Parquet by its ending.

    The file appears at the end, if anything was written.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    make = pa.csv.CSVWriter if path.suffix.lower() == ".csv" else pa.parquet.ParquetWriter
    with file_appearing(path) as hidden, ExitStack() as stack:
        writers: list[Any] = []

        def write(columns: Sequence[Any], names: Sequence[str]) -> None:
            table = pa.table(list(columns), names=list(names))
            if not writers:
                writers.append(stack.enter_context(make(hidden, table.schema)))
            writers[0].write_table(table)

        yield write


@contextmanager
def files_appearing(folder: Path, old: Sequence[Path] = ()) -> Iterator[Path]:
    """A hidden folder; the files written there move to ``folder`` at the end, where old ones go."""
    made = not folder.exists()
    folder.mkdir(exist_ok=True)
    hidden = folder / f".sharedspan-{secrets.token_hex(8)}"
    moved: list[Path] = []
    try:
        hidden.mkdir()
        yield hidden
        for file in old:
            file.unlink()
        for file in sorted(hidden.iterdir()):
            moved.append(file.replace(folder / file.name))
    except BaseException:
        for file in moved:
            file.unlink(missing_ok=True)
        shutil.rmtree(hidden, ignore_errors=True)
        if made:
            folder.rmdir()
        raise
    hidden.rmdir()
