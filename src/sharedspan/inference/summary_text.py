"""A summary as plain text of 80 columns, laid out as R and lme4 do it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sharedspan.inference.summary import Summary
from sharedspan.inference.summary_names import (
    distinct_names,
    fitting_start,
    shorten_middle,
    text_width,
    visible,
)
from sharedspan.inference.summary_sections import summary_sections
from sharedspan.inference.summary_tables import Lines, SummaryTable

WIDTH = 80
LEAST_LABEL = 10  # columns that names have at least, before a table is broken into panels
PANEL_LABEL = 24  # columns that names have at most in panels
LONGEST_TEXT = 600  # characters of a formula or a sentence


def summary_text(summary: Summary) -> str:
    """The summary as text, at most 80 columns wide."""
    blocks = []
    for section in summary_sections(summary):
        lines = _text_lines(section) if isinstance(section, Lines) else _table_text(section)
        blocks.append("\n".join(line.rstrip() for line in lines))
    return "\n\n".join(blocks)


def wrap_text(text: str, *, width: int = WIDTH, indent: str = "  ") -> list[str]:
    """Visible text broken into lines, the second and further ones indented."""
    lines: list[str] = []
    line = ""
    for word in shorten_middle(visible(text), LONGEST_TEXT).split():
        if line.strip() and text_width(line) + 1 + text_width(word) > width:
            lines.append(line)
            line = indent
        line += (" " if line.strip() else "") + word
        while text_width(line) > width:
            first = fitting_start(line[:width], width)
            lines.append(first)
            line = indent + line[len(first) :]
    return [*lines, line]


def _text_lines(section: Lines) -> Iterator[str]:
    if section.title:
        yield f"{section.title}:"
    for label, text in section.lines:
        line = f"{label}: {text}" if label else text
        if not section.title:
            yield from wrap_text(line)
        else:
            yield from ("  " + wrapped for wrapped in wrap_text(line, width=WIDTH - 2, indent=""))


def _table_text(table: SummaryTable) -> Iterator[str]:
    """A table, in panels with some of the columns each if it is too wide."""
    if table.title:
        yield from wrap_text(f"{table.title}:")
    columns = list(zip(table.header, *table.rows, strict=True))
    labels = columns[: table.labels]
    numbers = [_right_aligned(column) for column in columns[table.labels :]]
    needed = sum(text_width(column[0]) + 1 for column in numbers)
    least = _label_width(labels, LEAST_LABEL)
    if needed + least > WIDTH + 1:
        least = _label_width(labels, PANEL_LABEL)
    for panel in _panels(numbers, WIDTH - least):
        room = WIDTH - sum(text_width(column[0]) + 1 for column in panel)
        for cells in zip(*_label_columns(labels, room), *panel, strict=True):
            yield " ".join(cells)
    for note in table.notes:
        yield from wrap_text(note)


def _label_width(columns: Sequence[Sequence[str]], most: int) -> int:
    """The width of columns of names, each of them at most ``most`` wide, with spaces after them."""
    return sum(min(_widest(column), most) + 1 for column in columns)


def _widest(column: Sequence[str]) -> int:
    return max(text_width(visible(cell)) for cell in column)


def _right_aligned(column: Sequence[str]) -> list[str]:
    """Visible cells of one width."""
    cells = [visible(cell) for cell in column]
    width = max(map(text_width, cells))
    return [" " * (width - text_width(cell)) + cell for cell in cells]


def _panels(columns: list[list[str]], room: int) -> Iterator[list[list[str]]]:
    """Columns in turn, as many at a time as have room."""
    panel: list[list[str]] = []
    left = room
    for column in columns:
        width = text_width(column[0]) + 1
        if panel and width > left + 1:
            yield panel
            panel, left = [], room
        panel.append(column)
        left -= width
    yield panel


def _label_columns(columns: Sequence[Sequence[str]], room: int) -> Iterator[list[str]]:
    """Names, left aligned and shortened; the last column has the room that others leave."""
    for k, column in enumerate(columns):
        share = room - _label_width(columns[k + 1 :], LEAST_LABEL)
        names = distinct_names(column, min(_widest(column), share))
        width = max(map(text_width, names))
        room -= width + 1
        yield [name + " " * (width - text_width(name)) for name in names]
