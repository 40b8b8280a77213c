"""Output of the commands: JSON for programs, lines and tables for people."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

PIPE_WIDTH = 110  # characters of a table that is not printed on a terminal
CONTROLS = ("Cc", "Cf", "Cs", "Zl", "Zp")  # of Unicode: also of the direction of writing
KEPT = "\n\t\u200c\u200d"
TEXT_COLUMNS = ("", "method", "claim", "verdict")  # the other columns hold numbers


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collect the distinct warnings of the block; the list is complete at its end."""
    import warnings

    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield messages
    messages += dict.fromkeys(" ".join(str(warning.message).split()) for warning in caught)


def printable(text: str) -> str:
    """Text whose control characters are escaped: names and labels may hold commands for a terminal.

    Line ends, tabs and the characters that join letters stay.
    """
    return "".join(
        character
        if character in KEPT or unicodedata.category(character) not in CONTROLS
        else repr(character)[1:-1]
        for character in text
    )


def echo_result(
    result: Any, lines: Sequence[str], *, as_json: bool, warnings: Sequence[str] = ()
) -> None:
    """Print a result as JSON and nothing else, or as lines of text after the warnings."""
    if as_json:
        echo_json(result)
        return
    for warning in warnings:
        click.echo(printable(f"Warning: {warning}"), err=True)
    for line in lines:
        click.echo(printable(line))


def echo_json(result: Any) -> None:
    """Print a result as JSON: null for numbers that are not finite, paths as text."""
    import json

    finite = json.loads(json.dumps(result, default=str), parse_constant=lambda _: None)
    click.echo(json.dumps(finite, indent=2))


def print_wrapped(*lines: str) -> None:
    """Print sentences, wrapped between words on a terminal and as they are in a pipe."""
    from rich.console import Console

    console = Console(highlight=False)
    for line in lines:
        console.print(printable(line), markup=False, soft_wrap=not console.is_terminal)


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], **settings: Any
) -> None:
    """Print a table with rich's settings, columns of text aligned left and numbers right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", title_style="bold", **settings)
    for name in columns:
        justify: Any = "left" if name in TEXT_COLUMNS else "right"
        table.add_column(name, justify=justify, overflow="fold")  # names are never cut
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPE_WIDTH)
    console.print(table)


def missing_rows(n_rows: int) -> list[str]:
    """A line with the number of rows that were left out; no line if there are none."""
    from sharedspan.diagnosis.text import count

    verb = "was" if n_rows == 1 else "were"
    return [f"{count(n_rows, 'row')} with missing values {verb} left out."] if n_rows else []
