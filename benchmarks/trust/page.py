"""docs/trust.md from the figures of the parts."""

import ast
import json
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "trust.md"
MENDED = Path(__file__).parent / "mended"
HEAD = """# Trust

A single wrong result that is returned without a warning is enough to lose trust in a numerical
library. The suites in `benchmarks/trust` look for such results under hostile input, faults and
load. `python -m benchmarks.trust` runs them and writes this page; the tests run the same checks
with fewer cases. The command below each table is the one that made it. The number after `--cases`
is the fraction of all cases that this run had: 0.1 means a tenth of them.
"""
FIXED = """Each item says first what was wrong and then, after "Now", what holds today. The tests in
brackets check it.
"""
MISSING = """These parts have checks, too, but no results on this page yet:
"""


class Line(NamedTuple):
    """A claim, the figure that was measured, and whether the claim held."""

    claim: str
    figure: str
    holds: bool = True


def write_page(parts, folder):
    """Write the page from the figures in a folder; parts that have none are named."""
    text, missing = [HEAD], []
    for part in parts:
        file = Path(folder) / f"{part}.json"
        about = ast.get_docstring(ast.parse(Path(__file__).with_name(f"{part}.py").read_text()))
        title, _, rest = about.partition("\n")
        title = title.rstrip(".")
        if not file.exists():
            missing.append(f"- {title} (`python -m benchmarks.trust {part}`)")
            continue
        figures = json.loads(file.read_text())
        text += [f"## {title}", "", *([rest.strip(), ""] if rest else [])]
        text += ["| check | result | passed |", "|---|---|---|"]
        for line in figures["lines"]:
            holds = "yes" if line["holds"] else "**no**"
            text.append(f"| {line['claim']} | {line['figure']} | {holds} |")
        command, minutes = figures["command"], figures["minutes"]
        text += ["", f"`{command}`: {minutes:g} minutes on {figures['machine']}.", ""]
    mended = [file.read_text().strip() for file in sorted(MENDED.glob("*.md"))]
    if mended:
        text += ["## What was found and fixed", "", FIXED, *mended, ""]
    if missing:
        text += ["## Parts without results", "", MISSING, *missing, ""]
    PAGE.write_text("\n".join(text))
