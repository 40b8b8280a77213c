"""How kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered (so that they vectorise), but NaN and infinity stay what they are.
_REORDER = {"reassoc", "contract", "nsz"}


def kernel(function: F, **more: Any) -> F:
    """Compile without the interpreter lock, caching machine code on disk where that is allowed."""
    options: dict[str, Any] = {"nogil": True, "fastmath": _REORDER, "error_model": "numpy"} | more
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no writable directory for the cache
        return numba.njit(**options)(function)


def part(function: F) -> F:
    """Compile as part of the kernels that call it: a call costs as much as a small task."""
    return kernel(function, forceinline=True)
