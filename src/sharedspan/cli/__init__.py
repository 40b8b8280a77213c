"""The command line. Its commands are imported when ``main`` is first used."""

from __future__ import annotations

TYPE_CHECKING = False  # before ``run`` is called Ctrl-C shows a traceback, so typing is left out
if TYPE_CHECKING:
    from typing import Any


def __getattr__(name: str) -> Any:
    if name != "main":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sharedspan.cli.commands import main

    return main
