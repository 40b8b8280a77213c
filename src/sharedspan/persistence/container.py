"""Files that hold a tree of dicts, lists, arrays, numbers and strings, and run no code when read.

    a line with the format's name and number
    the length of the JSON that follows, 8 bytes
    the tree as JSON, with the kind, shape and order of each array in its place
    the numbers of all arrays, one after the other
    SHA-256 of all that, 32 bytes

A file is written beside the old one and takes its place once it is whole and on the disk, so that
at any time there is a good one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

KINDS = "biufU"  # of arrays: flags, numbers and strings; never objects
ARRAY = "<array>"  # the key that stands for an array in JSON
DIGEST = hashlib.sha256().digest_size

Tree = Any  # dict, list or tuple of trees, array, number, str or None; tuples come back as lists
Path = str | os.PathLike[str]


@dataclass(frozen=True)
class TreeFormat:
    """A kind of file.

    Parameters
    ----------
    noun : str
        What such a file is called, in its first line and in messages.
    version : int
        Of what is written; files of later ones are refused.
    error : type of exception
        Raised for a file that cannot be read as one.
    remedy : str
        What to do about a damaged one.
    """

    noun: str
    version: int
    error: type[ValueError]
    remedy: str

    @property
    def magic(self) -> bytes:
        return f"sharedspan {self.noun}, format ".encode()

    def write(self, path: Path, tree: Tree) -> None:
        """Write a tree; the file has its old content until the new one is complete.

        A function in the tree stands for what it returns.
        """
        arrays: list[np.ndarray] = []
        text = json.dumps(_emptied(tree, arrays)).encode()
        head = self.magic + b"%d\n" % self.version + len(text).to_bytes(8, "little")
        pieces: list[Any] = [head, text, *(a.reshape(-1).view(np.uint8).data for a in arrays)]
        digest = hashlib.sha256()
        with self.replacing(path) as file:
            for piece in pieces:
                digest.update(piece)
                file.write(piece)
            file.write(digest.digest())

    def read(self, path: Path) -> Tree:
        """The tree in a file, if it is as it was written."""
        if os.path.exists(path) and not os.path.isfile(path):
            raise self.error(f"{os.fspath(path)!r} is not a file: give a {self.noun}.")
        with open(path, "rb") as file:
            end = self._verified(file, path)
            try:
                size = int.from_bytes(file.read(8), "little")
                tree = _filled(json.loads(_exactly(file, size, end)), file, end)
                if file.tell() != end:
                    raise ValueError("More arrays than the tree has.")
            except (ValueError, TypeError, OverflowError, RecursionError) as error:
                raise self.damaged(path) from error
        return tree

    def damaged(self, path: Path) -> ValueError:
        """The error for a file whose content is not what it should be."""
        return self.error(f"{os.fspath(path)!r} is damaged, cut short or changed: {self.remedy}.")

    def _verified(self, file: BinaryIO, path: Path) -> int:
        """Where the content ends, once its digest is found right; leaves the first line behind."""
        head = file.readline(len(self.magic) + 10)
        version = head[len(self.magic) : -1]
        if not head.startswith(self.magic):
            raise self.error(f"{os.fspath(path)!r} is no {self.noun} of sharedspan: give one.")
        if version.isdigit() and int(version) > self.version:
            raise self.error(
                f"{os.fspath(path)!r} was written by a newer sharedspan, in format {int(version)}, "
                f"and this one reads format {self.version}: update sharedspan."
            )
        end = os.fstat(file.fileno()).st_size - DIGEST
        if end < len(head) or version != b"%d" % self.version:
            raise self.damaged(path)
        digest, left = hashlib.sha256(head), end - len(head)
        while chunk := file.read(min(left, 1 << 20)):
            digest.update(chunk)
            left -= len(chunk)
        if left or file.read() != digest.digest():
            raise self.damaged(path)
        file.seek(len(head))
        return end

    @contextmanager
    def replacing(self, path: Path) -> Iterator[BinaryIO]:
        """A file beside ``path`` to write to; it becomes ``path`` at the end, or vanishes."""
        target = os.path.realpath(path)  # a link stays one
        folder = os.path.dirname(target)
        temporary = os.path.join(folder, f".sharedspan-{secrets.token_hex(8)}.tmp")
        try:
            self._refuse_foreign(path)
            try:
                if not os.path.isdir(folder):
                    raise FileNotFoundError(errno.ENOENT, f"there is no folder {folder}")
                with open(temporary, "xb") as file:
                    if os.path.exists(target):
                        shutil.copymode(target, temporary)
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, target)
            except BaseException:
                with suppress(OSError):
                    os.remove(temporary)
                raise
        except OSError as error:
            kept = f"the old {self.noun} is kept" if os.path.exists(target) else "there is none yet"
            raise OSError(
                error.errno,
                f"Cannot write the {self.noun} {os.fspath(path)!r}, {kept}: "
                f"{error.strerror or error}. Make room there, or give another file.",
            ) from error
        with suppress(OSError, AttributeError):  # not every system can do this to a folder
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)  # so that the new name outlives a loss of power
            finally:
                os.close(handle)

    def require_writable(self, path: Path) -> None:
        """Raise now what ``write`` would raise before its first byte; nothing is left behind."""

        class EnoughError(Exception):
            pass

        with suppress(EnoughError), self.replacing(path):
            raise EnoughError

    def _refuse_foreign(self, path: Path) -> None:
        """A slip in a name must not cost the user a file."""
        if not os.path.exists(path):
            return
        if not os.path.isfile(path):
            raise self.error(f"{os.fspath(path)!r} is not a file: give another name.")
        with open(path, "rb") as file:
            head = file.read(len(self.magic))
        if head not in (b"", self.magic):
            raise self.error(
                f"{os.fspath(path)!r} holds something else than a {self.noun}, which would be "
                "lost: give another name, or remove it first."
            )


def _emptied(tree: Tree, arrays: list[np.ndarray]) -> Any:
    """A tree that JSON can hold; its arrays, as they lie in memory, go to ``arrays``."""
    if callable(tree):
        tree = tree()
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    if isinstance(tree, Mapping):
        if not all(isinstance(key, str) for key in tree):
            raise TypeError(f"Keys must be strings, not {list(tree)!r}.")
        return {key: _emptied(value, arrays) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_emptied(value, arrays) for value in tree]
    if isinstance(tree, np.generic):
        return plain(tree)
    array = np.asarray(tree)  # from a device, too
    if array.dtype.kind not in KINDS:
        raise TypeError(f"A file cannot hold {tree!r}, a {type(tree).__name__}.")
    # Products of matrices differ in their last bits with the order in memory, so that is kept.
    by_columns = array.flags.f_contiguous and not array.flags.c_contiguous
    arrays.append(np.ascontiguousarray(array.T if by_columns else array))
    return {ARRAY: [array.dtype.str, list(array.shape), "F" if by_columns else "C"]}


def plain(value: Any) -> Any:
    """A number, flag or string of NumPy's as Python's own."""
    if isinstance(value, np.generic) and value.dtype.kind in KINDS:
        item = value.item()
        if not isinstance(item, np.generic):  # as that of a longdouble would be
            return item
    raise TypeError(f"A file cannot hold {value!r}, a {type(value).__name__}.")


def _filled(tree: Any, file: BinaryIO, end: int) -> Tree:
    """The tree again, its arrays read one after the other."""
    if isinstance(tree, list):
        return [_filled(value, file, end) for value in tree]
    if not isinstance(tree, dict):
        return tree
    if ARRAY not in tree:
        return {key: _filled(value, file, end) for key, value in tree.items()}
    kind, shape, order = tree[ARRAY]
    dtype = np.dtype(kind)
    if dtype.kind not in KINDS or min(shape, default=0) < 0:
        raise ValueError(f"An array of kind {kind!r} and shape {shape!r}.")
    content = _exactly(file, math.prod(shape) * dtype.itemsize, end)
    array = np.frombuffer(content, dtype).astype(dtype.newbyteorder("="))
    return array.reshape(shape[::-1]).T if order == "F" else array.reshape(shape)


def _exactly(file: BinaryIO, size: int, end: int) -> bytes:
    if size > end - file.tell():
        raise ValueError("The file ends too early.")
    return file.read(size)
