"""The page of the findings: for each a figure, its table, and a paragraph computed from it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from sharedspan.diagnosis.text import listed
from sharedspan.paper import FINDINGS, experiment_named
from sharedspan.paper.findings.finding import Finding
from sharedspan.paper.table import ResultTable


def finding_named(name: str) -> Finding:
    """The finding of this name."""
    finding = experiment_named(name)
    assert isinstance(finding, Finding)
    return finding


def paragraphs(tables: Mapping[str, ResultTable]) -> dict[str, str]:
    """The answer of each finding whose table is given, in the order of the page."""
    return {
        name: finding_named(name).paragraph(tables[name]) for name in FINDINGS if name in tables
    }


def findings_page(tables: Mapping[str, ResultTable], command: str) -> str:
    """The page in Markdown, computed from the tables alone."""
    row = next(table for table in tables.values() if len(table)).rows[0]
    lines = [
        "# Findings beyond the paper",
        "",
        "Questions that the [paper](results.md) leaves open, answered by simulation. The second "
        "paragraph under each figure is computed from its table, sentence by sentence. κ is the "
        "condition number of V*, σ the noise, and the floor is σ²k(d+T-k)/(NT), the error that the "
        "best fit of rank k approaches as rows grow. Unless stated otherwise singular values fall "
        "geometrically, rows are standard Gaussian and |v_t| is about 1; well-set steps are "
        "0.5/σ₁, with σ₁ from the data, which is outside the hypotheses of the paper's theorem.",
        "",
        f"Made by `{command}` with sharedspan {row['version']} on {row['machine']}. The same "
        "command gives the same tables.",
    ]
    for name, answer in paragraphs(tables).items():
        finding, table = finding_named(name), tables[name]
        note = finding.note
        about = " ".join(inspect.cleandoc(finding.__doc__ or "").split())
        sizes = ", ".join(f"{size} = {_range(table, size)}" for size in ("d", "T", "k", "N"))
        sizes += f"; {seeds_text(table)}"
        lines += [
            "", f"## {finding.title[0].upper()}{finding.title[1:]}",
            "", f"![{name}]({name}.png)",
            "", f"{about} {sizes}; table: [{name}.csv]({name}.csv). {note}".rstrip(),
            "", answer,
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def seeds_text(table: ResultTable) -> str:
    """The number of seeds, for each part of the table if they differ."""
    counts = {part: len(rows.values("seed")) for part, rows in table.groups("part")}
    (first, n), *others = counts.items()
    text = "one seed" if n == 1 else f"{n} seeds"
    if len(set(counts.values())) == 1:
        return text
    return listed([f"{text} for {first}", *(f"{m} for {part}" for part, m in others)])


def _range(table: ResultTable, size: str) -> str:
    values = table.values(size)
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"
