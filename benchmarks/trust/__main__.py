"""Suites of hostile input, faults and load, and the page that shows their figures.

    python -m benchmarks.trust [PART ...]     # runs the parts, all by default, and writes the page
    python -m benchmarks.trust --page         # writes the page from the figures of earlier runs

Each part is a module of this folder with a function ``run(cases, seed)`` that returns a list of
`Line`. `--cases` multiplies the number of cases: the tests run the same functions with few.
"""

import argparse
import importlib
import json
import platform
import time
from pathlib import Path

from benchmarks.machine import machine
from benchmarks.trust.page import write_page

PARTS = ("properties", "oracles", "extremes", "faults", "fuzz", "soak", "versions", "coverage",
         "mutation")  # fmt: skip
FIGURES = Path(__file__).parent / "figures"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--cases", type=float, default=1.0, help="a factor on their number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown parts {sorted(unknown)}: choose among {', '.join(PARTS)}")
    FIGURES.mkdir(exist_ok=True)
    for part in () if options.page else options.parts or PARTS:
        began = time.perf_counter()
        lines = importlib.import_module(f"benchmarks.trust.{part}").run(options.cases, options.seed)
        figures = {
            "command": f"python -m benchmarks.trust {part} --cases {options.cases:g} "
            f"--seed {options.seed}",
            "machine": f"{machine()}, Python {platform.python_version()}",
            "minutes": round((time.perf_counter() - began) / 60, 1),
            "lines": [line._asdict() for line in lines],
        }
        (FIGURES / f"{part}.json").write_text(json.dumps(figures, indent=1) + "\n")
        for line in lines:
            print(f"{part}: {line.claim}: {line.figure}", flush=True)
    write_page(PARTS, FIGURES)


if __name__ == "__main__":
    main()
