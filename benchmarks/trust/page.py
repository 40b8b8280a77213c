"""docs/trust.md from the figures of the parts."""

import importlib
import json
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "trust.md"
MENDED = Path(__file__).parent / "mended"
HEAD = """# Trust

A numerical library loses trust by one silent wrong number. These suites look for such numbers under
hostile input, faults and load. `python -m benchmarks.trust` runs them and writes this page; the
tests run the same checks with fewer cases.
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
        if not file.exists():
            missing.append(part)
            continue
        figures = json.loads(file.read_text())
        about = importlib.import_module(f"benchmarks.trust.{part}").__doc__.strip()
        title, _, rest = about.partition("\n")
        text += [f"## {title.rstrip('.')}", "", rest.strip(), ""] if rest else [f"## {title}", ""]
        text += ["| claim | figure | |", "|---|---|---|"]
        for line in figures["lines"]:
            holds = "yes" if line["holds"] else "**no**"
            text.append(f"| {line['claim']} | {line['figure']} | {holds} |")
        command, minutes = figures["command"], figures["minutes"]
        text += ["", f"`{command}`: {minutes:g} minutes on {figures['machine']}.", ""]
    mended = [file.read_text().strip() for file in sorted(MENDED.glob("*.md"))]
    if mended:
        text += ["## What was found and mended", "", *mended, ""]
    if missing:
        text += [f"Not run yet: {', '.join(missing)}.", ""]
    PAGE.write_text("\n".join(text))
