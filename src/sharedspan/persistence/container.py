"""Files that hold a tree of dicts, lists, arrays, numbers and strings, and run no code when read.

    a line with the name and the number of the format
    the length of the JSON that follows, 8 bytes
    the tree as JSON, with the dtype, shape and order of each array in its place
    the elements of all arrays, one after the other
    SHA-256 of everything above, 32 bytes

Nothing is interpreted before the checksum is verified.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import pathlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

import numpy as np

from sharedspan.persistence.atomic_write import atomic_path

KINDS = "biufU"  # dtypes of arrays: booleans, numbers and strings, never objects
ARRAY = "<array>"  # the key that represents an array in JSON
DIGEST = hashlib.sha256().digest_size

Tree = Any  # dict, list or tuple of trees, array, number, str or None; tuples come back as lists
Path = str | os.PathLike[str]


@dataclass(frozen=True)
class TreeFormat:
    """A file format."""

    noun: str  # the name of such a file, in its first line and in messages
    version: int  # the version that is written; earlier ones are read, later ones refused
    error: type[ValueError]  # raised for a file that cannot be read
    remedy: str  # what to do about a damaged file

    @property
    def magic(self) -> bytes:
        return f"sharedspan {self.noun}, format ".encode()

    def write(self, path: Path, tree: Tree) -> None:
        """Write a tree atomically; functions in it are called and replaced by their results."""
        arrays: list[np.ndarray] = []
        text = json.dumps(_without_arrays(tree, arrays)).encode()
        head = self.magic + b"%d\n" % self.version + len(text).to_bytes(8, "little")
        pieces: list[Any] = [head, text, *(a.reshape(-1).view(np.uint8).data for a in arrays)]
        digest = hashlib.sha256()
        with (
            self._writing(path),
            atomic_path(pathlib.Path(path)) as temporary,
            open(temporary, "wb") as file,
        ):
            for piece in pieces:
                digest.update(piece)
                file.write(piece)
            file.write(digest.digest())

    def require_writable(self, path: Path) -> None:
        """Raise the errors that ``write`` would raise before its first byte."""
        with (
            self._writing(path),
            tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(path))),
        ):
            pass

    def read(self, path: Path) -> Tree:
        """The tree in a file; raises unless the file is exactly as it was written."""
        if os.path.exists(path) and not os.path.isfile(path):
            raise self.error(f"{os.fspath(path)!r} is not a file: give the path of a {self.noun}.")
        with open(path, "rb") as file, self.interpreting(path):
            end = self._verify(file, path)
            text = _read_exactly(file, int.from_bytes(file.read(8), "little"), end)
            tree = json.loads(text, object_hook=partial(_with_array, file=file, end=end))
            if file.tell() != end:
                raise ValueError("The file has more arrays than the tree.")
        return tree

    @contextmanager
    def interpreting(self, path: Path) -> Iterator[None]:
        """Report any error in this context as damage of the file, whose content caused it."""
        try:
            yield
        except (self.error, OSError, MemoryError):
            raise
        except Exception as error:
            damage = f"{os.fspath(path)!r} is damaged, cut short or changed"
            raise self.error(f"{damage}: {self.remedy}.") from error

    def _verify(self, file: BinaryIO, path: Path) -> int:
        """Check the first line and the digest; returns the position at which the arrays end."""
        head = file.readline(len(self.magic) + 10)
        version = head[len(self.magic) : -1]
        if not head.startswith(self.magic):
            raise self.error(f"{os.fspath(path)!r} is not a sharedspan {self.noun}.")
        if version.isdigit() and int(version) > self.version:
            raise self.error(
                f"{os.fspath(path)!r} was written by a newer sharedspan, in format {int(version)}, "
                f"but this one reads formats up to {self.version}: update sharedspan."
            )
        end = os.fstat(file.fileno()).st_size - DIGEST
        if end < len(head) or version not in {b"%d" % n for n in range(1, self.version + 1)}:
            raise ValueError(f"The file ends too early, or is of format {version!r}.")
        digest, left = hashlib.sha256(head), end - len(head)
        while chunk := file.read(min(left, 1 << 20)):
            digest.update(chunk)
            left -= len(chunk)
        if left or file.read() != digest.digest():
            raise ValueError("The checksum is wrong.")
        file.seek(len(head))
        return end

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        """Refuse to replace a file of another format, and name the file in errors."""
        exists = os.path.exists(path)
        if exists and not os.path.isfile(path):
            raise self.error(f"{os.fspath(path)!r} is not a file: give another name.")
        try:
            if exists:
                with open(path, "rb") as file:
                    head = file.read(len(self.magic))
                if head not in (b"", self.magic):  # a typing error must not destroy a file
                    raise self.error(
                        f"{os.fspath(path)!r} exists and is not a {self.noun}: give another name, "
                        "or remove it first."
                    )
            yield
        except OSError as error:
            state = f"the old {self.noun} is unchanged" if exists else "there is none yet"
            raise OSError(
                error.errno,
                f"Cannot write the {self.noun} {os.fspath(path)!r}, {state}: "
                f"{error.strerror or error}. Free some space, or give another file.",
            ) from error


def _without_arrays(tree: Tree, arrays: list[np.ndarray]) -> Any:
    """The tree as JSON; its arrays are appended to ``arrays`` in memory order."""
    if callable(tree):
        tree = tree()
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    if isinstance(tree, Mapping):
        if not all(isinstance(key, str) for key in tree):
            raise TypeError(f"Keys must be strings, not {list(tree)!r}.")
        return {key: _without_arrays(value, arrays) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_without_arrays(value, arrays) for value in tree]
    if isinstance(tree, np.generic):
        return as_python_scalar(tree)
    array = np.asarray(tree)  # copies a matrix from a device
    if array.dtype.kind not in KINDS:
        raise TypeError(f"A file cannot hold {tree!r}, a {type(tree).__name__}.")
    # Matrix products differ in their last bits with the order in memory, so it is stored.
    by_columns = array.flags.f_contiguous and not array.flags.c_contiguous
    arrays.append(np.ascontiguousarray(array.T if by_columns else array))
    return {ARRAY: [array.dtype.str, list(array.shape), "F" if by_columns else "C"]}


def _with_array(node: dict[str, Any], file: BinaryIO, end: int) -> Tree:
    """A dict of the JSON, or the array that it represents, read from the file."""
    if ARRAY not in node:
        return node
    name, shape, order = node[ARRAY]
    dtype = np.dtype(name)
    if dtype.kind not in KINDS or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"An array of dtype {name!r} and shape {shape!r} cannot be read.")
    content = _read_exactly(file, math.prod(shape) * dtype.itemsize, end)
    array = np.frombuffer(content, dtype).astype(dtype.newbyteorder("="))
    return array.reshape(shape[::-1]).T if order == "F" else array.reshape(shape)


def _read_exactly(file: BinaryIO, size: int, end: int) -> bytes:
    if size > end - file.tell():
        raise ValueError("The file ends too early.")
    return file.read(size)


def as_python_scalar(value: Any) -> Any:
    """A NumPy number, boolean or string as a Python object; a TypeError for anything else."""
    if isinstance(value, np.generic) and value.dtype.kind in KINDS:
        item = value.item()
        if not isinstance(item, np.generic):  # the item of a longdouble is a longdouble
            return item
    raise TypeError(f"A file cannot hold {value!r}, a {type(value).__name__}.")
