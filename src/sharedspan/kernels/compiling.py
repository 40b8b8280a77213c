"""Decorators that compile kernels with Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered, so that they vectorise, but NaN and infinity are respected.
_REORDER = {"reassoc", "contract", "nsz"}


def kernel(function: F, **more: Any) -> F:
    """Compile without the interpreter lock; machine code is cached on disk if possible."""
    options: dict[str, Any] = {
        "nogil": True, "fastmath": _REORDER, "error_model": "numpy", "no_cfunc_wrapper": True
    } | more  # fmt: skip
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no writable directory for the cache
        return numba.njit(**options)(function)


def subroutine(function: F, **more: Any) -> F:
    """Compile for calls by kernels alone, without the wrapper that calls from Python need."""
    return kernel(function, no_cpython_wrapper=True, **more)


def part(function: F) -> F:
    """Compile inline into the calling kernels: a call would cost as much as a small task."""
    return subroutine(function, forceinline=True)
