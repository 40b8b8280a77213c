"""Files that appear complete or not at all."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


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
