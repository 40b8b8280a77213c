"""Decorators that compile kernels with Numba.

Numba compiles a kernel for the types of its arguments when it is first called, together with all
functions that it calls, each of them once by itself and once more as a part of its caller. Three
rules keep the first fit short: a function that only kernels call is a ``subroutine`` or a ``part``,
large code is called from one place, and it is never compiled for two sets of types. (A number that
is written out in a call of a kernel by a kernel is a type of its own.)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numba
from numba.extending import register_jitable

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered, so that they vectorise, but NaN and infinity are respected.
_REORDER = {"reassoc", "contract", "nsz"}
_OPTIONS: dict[str, Any] = {
    "nogil": True, "fastmath": _REORDER, "error_model": "numpy", "no_cfunc_wrapper": True
}  # fmt: skip

KERNELS: list[Any] = []  # all kernels of the modules that are imported


def kernel(function: F) -> F:
    """Compile without the interpreter lock; machine code is cached on disk if possible."""
    try:
        compiled = numba.njit(cache=True, **_OPTIONS)(function)
        _make_optional(compiled._cache)
    except RuntimeError:  # no writable directory for the cache
        compiled = numba.njit(**_OPTIONS)(function)
    KERNELS.append(compiled)
    return compiled


def _make_optional(cache: Any) -> None:
    """Let a fit go on if the disk of the cache is full, or a file in it is damaged."""
    load, save = cache.load_overload, cache.save_overload

    def load_overload(*arguments: Any) -> Any:
        try:
            return load(*arguments)
        except Exception:  # whatever unpickling a damaged file may raise
            return None

    def save_overload(*arguments: Any) -> None:
        with suppress(Exception):
            save(*arguments)

    cache.load_overload, cache.save_overload = load_overload, save_overload


def subroutine(function: F) -> F:
    """Compile for calls from kernels; Python code that calls it runs the plain function."""
    return register_jitable(**_OPTIONS)(function)


def part(function: F) -> F:
    """Compile inline into the calling kernels: a call would cost as much as a small task."""
    return register_jitable(**_OPTIONS, forceinline=True)(function)
