"""Temporary files and folders that a later run removes if their process was killed.

Each is locked by the process that made it, and the system drops the lock when that process ends,
however it ends. So a file that can be locked has no owner any more. Other signs are not sound: the
owner may run on another machine that shares the disk, and clocks may be wrong.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows nothing is locked, and nothing is removed
    fcntl = None  # type: ignore[assignment]

# Files of version 0.1.0, which did not lock them, have 16 digits.
NAME = re.compile(r"\.?sharedspan-[0-9a-f]{24}(\.[^/]*)?")
_swept: set[str] = set()  # folders whose leftovers this process has removed


class Temporary:
    """An empty file of this mode beside others, or a folder if the mode is None; locked.

    The first one that a process makes in a place removes what killed processes left there.
    """

    def __init__(
        self, place: Path, *, prefix: str = ".", suffix: str = "", mode: int | None = None
    ) -> None:
        remove_leftovers(place)
        self._descriptor: int | None = None
        while True:
            self.path = place / f"{prefix}sharedspan-{secrets.token_hex(12)}{suffix}"
            try:
                if mode is None:
                    self.path.mkdir(0o700)
                else:
                    self.path.touch(mode, exist_ok=False)
                if self._lock():
                    return
            except BaseException:
                self.remove()
                raise

    def remove(self) -> None:
        """Remove the file, if it has not been moved, or the folder, and drop the lock."""
        _remove(self.path)
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def _lock(self) -> bool:
        """Lock the new file; False if another process took it for a leftover before that."""
        if fcntl is None:
            return True
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(self._descriptor), os.stat(self.path)):
                return True
        except FileNotFoundError:
            pass
        except OSError:  # this file system has no locks: nobody will take the file for a leftover
            return True
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        return False


def remove_leftovers(place: Path) -> None:
    """Remove the temporary files of killed processes from a folder, once in each process."""
    if fcntl is None or str(place) in _swept:
        return
    _swept.add(str(place))
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if NAME.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_unless_locked(Path(entry.path))


def _remove_unless_locked(path: Path) -> None:
    """Remove a file or folder of this user; OSError if it is another's or in use."""
    # A temporary folder is open to all users, who may put anything there under such a name.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        about = os.fstat(descriptor)
        is_usual = stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)
        if about.st_uid == os.geteuid() and is_usual:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(about, os.stat(path, follow_symlinks=False)):
                _remove(path)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@contextmanager
def temporary_folder() -> Iterator[str]:
    """A folder in the temporary folder of the system, removed at the end."""
    folder = Temporary(Path(tempfile.gettempdir()), prefix="")
    try:
        yield str(folder.path)
    finally:
        folder.remove()


class SharedFolder:
    """A temporary folder with files of which there may be many, removed with the last of them.

    A lock takes an open file, and a process may not have many of these.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the collector may call ``remove`` within ``make``
        self._folder: Temporary | None = None
        self._n_files = 0

    def make(self, suffix: str) -> tuple[int, str]:
        """A new file, open for writing, and its name."""
        with self._lock:
            self._n_files += 1
            try:
                if self._folder is None:
                    self._folder = Temporary(Path(tempfile.gettempdir()), prefix="")
                return tempfile.mkstemp(suffix=suffix, dir=self._folder.path)
            except BaseException:
                self._drop()
                raise

    def remove(self, path: str) -> None:
        """Remove one of the files, and the folder if it was the last."""
        with self._lock:
            with suppress(FileNotFoundError):
                os.remove(path)
            self._drop()

    def _drop(self) -> None:
        self._n_files -= 1
        if self._n_files == 0 and self._folder is not None:
            folder, self._folder = self._folder, None
            folder.remove()
