"""Docstrings as we write them, for people at a terminal: |v - v*|, coef_ and W' are plain text.

reStructuredText would take them for substitutions, emphasis and links, so their marks are escaped
wherever they do not stand in a literal or in an example.
"""

import re
from typing import Any

LITERAL = re.compile(r"(``.+?``)")
MARK = re.compile(r"[|*](?!\w+ : )|(?<=\w)_(?!\w)|`")


def plain(line: str) -> str:
    """The line with every mark outside of literals escaped."""
    if line.lstrip().startswith((">>> ", "... ")):
        return line
    parts = LITERAL.split(line)
    return "".join(
        part if part.startswith("``") else MARK.sub(lambda mark: "\\" + mark.group(), part)
        for part in parts
    )


def escape(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Handler of ``autodoc-process-docstring``: changes the lines in place."""
    lines[:] = [plain(line) for line in lines]


def setup(app: Any) -> dict[str, bool]:
    """Escape before napoleon looks for sections."""
    app.connect("autodoc-process-docstring", escape, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
