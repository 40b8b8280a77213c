r"""A summary as HTML, Markdown and LaTeX: the same parts as the text, with every name escaped.

Names come from users' tables and may hold tags, formulas or commands. Each renderer makes names
visible and short first, as the text does, and then escapes what its format reads as markup. LaTeX
gives a meaning even to a bracket or an asterisk at the start of a row, so these are in braces.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator

from sharedspan.inference.summary import Summary
from sharedspan.inference.summary_names import distinct_names, shorten_middle, visible
from sharedspan.inference.summary_sections import summary_sections
from sharedspan.inference.summary_tables import Lines, SummaryTable
from sharedspan.inference.summary_text import LONGEST_TEXT

LONGEST_NAME = 40  # characters of a name in a table
SCIENTIFIC = re.compile(r"(<?)(-?[0-9.]+)e([+-])0*([0-9]+)")
STYLE = (
    ".sharedspan-summary{color:inherit;font-size:.9em;line-height:1.4;overflow-x:auto}"
    ".sharedspan-summary table{border-collapse:collapse;margin:.6em 0;color:inherit;"
    "font-variant-numeric:tabular-nums;border-top:1px solid;border-bottom:1px solid}"
    ".sharedspan-summary caption{text-align:left;font-weight:bold;white-space:nowrap;color:inherit}"
    ".sharedspan-summary thead{border-bottom:1px solid}"
    ".sharedspan-summary tr{background:none}"
    ".sharedspan-summary th,.sharedspan-summary td{text-align:right;padding:.1em .6em;"
    "font-weight:normal;white-space:nowrap;color:inherit;border:0;vertical-align:top}"
    ".sharedspan-summary th.name,.sharedspan-summary th.text{text-align:left}"
    ".sharedspan-summary td.text{text-align:left;white-space:normal;min-width:16em}"
    ".sharedspan-summary tr.bold th,.sharedspan-summary tr.bold td{font-weight:bold}"
    ".sharedspan-summary p{margin:.4em 0;overflow-wrap:anywhere}"
)
MARKDOWN = str.maketrans(
    {char: f"\\{char}" for char in "\\`*_{}[]#|~$^@!"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
)
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
        "_": r"\_", "%": r"\%", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
        "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"{\char34}",
        "[": "{[}", "]": "{]}", "*": "{*}",
    }
)  # fmt: skip
LIGATURE = re.compile(r"(?<=[-'`?!,])(?=[-'`])")


def summary_html(summary: Summary) -> str:
    """HTML for a notebook; it has the colours of its surroundings."""
    return sections_html(summary_sections(summary))


def sections_html(sections: Iterable[Lines | SummaryTable]) -> str:
    """HTML of the parts of any result for a notebook, with every text escaped."""
    # MathJax would otherwise typeset names that contain dollars.
    head = f'<div class="sharedspan-summary tex2jax_ignore mathjax_ignore">\n<style>{STYLE}</style>'
    return "\n".join([head, *_rendered(sections, _html_lines, _html_table), "</div>"])


def summary_markdown(summary: Summary) -> str:
    """Markdown with pipe tables."""
    parts = _rendered(summary_sections(summary), _markdown_lines, _markdown_table)
    return "\n\n".join(parts) + "\n"


def summary_latex(summary: Summary) -> str:
    """LaTeX with the tables of the package booktabs."""
    parts = _rendered(summary_sections(summary), _latex_lines, _latex_table)
    return "\n\n\\medskip\n\n".join(parts) + "\n"


def _rendered(
    sections: Iterable[Lines | SummaryTable],
    lines: Callable[[Lines], Iterator[str]],
    table: Callable[[SummaryTable], Iterator[str]],
) -> list[str]:
    """Every part, by the functions of a format."""
    return [
        "\n".join(lines(section) if isinstance(section, Lines) else table(section))
        for section in sections
    ]


def _cells(table: SummaryTable) -> list[list[str]]:
    """Header and rows of a table, with visible and short names."""
    columns = list(zip(table.header, *table.rows, strict=True))
    names = [distinct_names(column, LONGEST_NAME) for column in columns[: table.labels]]
    numbers = [[_sentence(cell) for cell in column] for column in columns[table.labels :]]
    return [list(row) for row in zip(*names, *numbers, strict=True)]


def _sentence(text: str) -> str:
    return shorten_middle(visible(text), LONGEST_TEXT)


def _html_lines(section: Lines) -> Iterator[str]:
    if section.title:
        yield f"<p><b>{html.escape(section.title)}</b></p>"
    for label, text in section.lines:
        before = f"<b>{html.escape(_sentence(label))}:</b> " if label else ""
        fact = ' class="fact"' if label else ""
        yield f"<p{fact}>{before}<bdi>{html.escape(_sentence(text))}</bdi></p>"


def _html_table(table: SummaryTable) -> Iterator[str]:
    header, *rows = _cells(table)
    yield "<table>"
    if table.title:
        yield f"<caption>{html.escape(_sentence(table.title))}</caption>"
    yield f"<thead><tr>{_html_row(header, len(header), table, 'col')}</tr></thead>"
    yield "<tbody>"
    for i, row in enumerate(rows):
        bold = ' class="bold"' if i in table.bold else ""
        yield f"<tr{bold}>{_html_row(row, table.labels, table, 'row')}</tr>"
    yield "</tbody></table>"
    for note in table.notes:
        yield f"<p>{html.escape(_sentence(note))}</p>"


def _html_row(cells: list[str], headings: int, table: SummaryTable, scope: str) -> str:
    """Cells of a row, of which the first are headings."""
    texts = []
    for k, cell in enumerate(cells):
        is_name, is_text = k < table.labels, k >= len(cells) - table.texts
        text = f"<bdi>{html.escape(cell)}</bdi>" if is_name or is_text else html.escape(cell)
        name = ' class="name"' if is_name else ' class="text"' if is_text else ""
        texts.append(
            f'<th scope="{scope}"{name}>{text}</th>' if k < headings else f"<td{name}>{text}</td>"
        )
    return "".join(texts)


def _markdown_lines(section: Lines) -> Iterator[str]:
    if section.title:
        yield f"**{section.title}**\n"
    for label, text in section.lines:
        before = f"**{_markdown(label)}:** " if label else ""
        yield f"- {before}{_markdown(text)}"


def _markdown_table(table: SummaryTable) -> Iterator[str]:
    header, *rows = _cells(table)
    if table.title:
        yield f"**{_markdown(table.title)}**\n"
    for k, row in enumerate((header, *rows)):
        yield f"| {' | '.join(cell.translate(MARKDOWN) for cell in row)} |"
        if k == 0:
            yield "|" + "".join(":--|" if i < table.labels else "--:|" for i in range(len(row)))
    for note in table.notes:
        yield f"\n{_markdown(note)}"


def _markdown(text: str) -> str:
    return _sentence(text).translate(MARKDOWN)


def _latex_lines(section: Lines) -> Iterator[str]:
    if section.title:
        yield rf"\noindent\textbf{{{section.title}}}\par"
    for label, text in section.lines:
        before = f"{_latex(label)}: " if label else ""
        yield rf"\noindent {before}{_latex(text)}\par"


def _latex_table(table: SummaryTable) -> Iterator[str]:
    header, *rows = _cells(table)
    columns = "l" * table.labels + "r" * (len(header) - table.labels)
    if table.title:
        yield rf"\noindent\textbf{{{_latex(table.title)}}}\par"
    yield rf"\noindent\begin{{tabular}}{{{columns}}}"
    yield r"\toprule"
    yield " & ".join(map(_latex, header)) + r" \\"
    yield r"\midrule"
    for row in rows:
        names, numbers = row[: table.labels], row[table.labels :]
        yield " & ".join([*map(_latex, names), *map(_latex_number, numbers)]) + r" \\"
    yield r"\bottomrule"
    yield r"\end{tabular}\par"
    for note in table.notes:
        yield rf"\noindent {_latex(note)}\par"


def _latex(text: str) -> str:
    return LIGATURE.sub("{}", _sentence(text).translate(LATEX))


def _latex_number(cell: str) -> str:
    """A number in mathematics if it has a sign or an exponent."""
    power = SCIENTIFIC.fullmatch(cell)
    if power:
        less, mantissa, sign, exponent = power.groups()
        return rf"${less}{mantissa}\times 10^{{{sign.strip('+')}{exponent}}}$"
    return f"${cell}$" if cell.startswith("-") else cell
