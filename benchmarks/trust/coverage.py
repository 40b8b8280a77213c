"""Lines that the tests run.

The tests run once under coverage.py, from a copy of the last commit. For each line of the numerical
code and of the preparation of columns the run records which tests execute it, and for each test how
long it takes; the mutation tests (`python -m benchmarks.trust mutation`) need both. Tests of the
command line, reports, clusters and the paper are left out, though they run many of these lines too.
Two kinds of code are left out as well: the kernels, because coverage.py cannot see into what Numba
has compiled, and the module that runs only on a GPU.
"""

import argparse
import hashlib
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from benchmarks.trust.page import Line

ROOT = Path(__file__).parents[2]
WORK = ROOT / "build" / "trust"  # the copy and the map of lines, which git ignores
COPY, MAP = WORK / "copy", WORK / "lines.json"
SOURCE = Path("src/sharedspan")
COLUMNS = ("columns", "encoders", "learning", "recognition", "table_columns", "expressions",
           "formula_encoding", "levels", "splines", "odd_columns")  # fmt: skip
PACKAGES = {
    **{
        name: (f"{name}/*.py",)
        for name in ("objective", "statistics", "solvers", "mixed_model", "formula", "inference")
    },
    "families": ("families.py",),
    "columns of tables": tuple(f"inputs/{name}.py" for name in COLUMNS),
}
LEFT_OUT = (
    *("tests/paper", "tests/cli", "tests/report", "tests/distributed"),
    *(
        f"tests/contracts/test_{name}.py"
        for name in ("docs", "faults", "soak", "notebook_progress")
    ),
)
ON_GPU = {"device.py"}  # of objective
SHARE = 95.0  # percent of lines that must be run


def files(root):
    """The files of each package, relative to a checkout."""
    source = Path(root) / SOURCE
    return {
        name: sorted(
            str(file.relative_to(root))
            for pattern in patterns
            for file in source.glob(pattern)
            if file.name not in ON_GPU
        )
        for name, patterns in PACKAGES.items()
    }


def make_copy(folder=COPY):
    """Copy the last commit to a folder, and return its name."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tree = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(tree.stdout)) as archive:
        archive.extractall(folder, filter="data")
    named = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    return named.stdout.strip()


def environment():
    """Variables under which Python imports the package from the copy, and BLAS has one thread."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    variables = {**os.environ, **one, "PYTHONPATH": str(COPY / "src"), "PYTHONHASHSEED": "0"}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # most modules are imported again and again
    return variables


class Notes:
    """A plugin of pytest: tells coverage.py the current test, notes its time and outcome."""

    def __init__(self, measured):
        self.measured, self.tests = measured, {}

    def pytest_runtest_protocol(self, item):
        self.measured.switch_context(item.nodeid)
        self.began = time.perf_counter(), cpu_seconds()
        self.tests[item.nodeid] = {"passed": True}

    def pytest_runtest_logreport(self, report):
        test = self.tests[report.nodeid]
        test["passed"] &= report.passed
        test["seconds"] = round(time.perf_counter() - self.began[0], 3)
        test["cpu"] = round(cpu_seconds() - self.began[1], 3)

    def pytest_runtest_logfinish(self):
        self.measured.switch_context("")


def digest(source):
    """A short name of the text of a file, by which a later change of it is noticed."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def cpu_seconds():
    """Seconds of processors that this process and its finished children have taken."""
    own, children = (
        resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def measure(tests, out):
    """Run tests under coverage.py in this process; write their times and their lines."""
    import coverage
    import pytest

    here = Path.cwd()
    wanted = [file for group in files(here).values() for file in group]
    with tempfile.TemporaryDirectory() as folder:
        measured = coverage.Coverage(
            data_file=f"{folder}/data",
            include=[str(here / file) for file in wanted],
            config_file=False,
        )
        notes = Notes(measured)
        measured.start()
        pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *tests], plugins=[notes])
        measured.stop()
        data = measured.get_data()
        numbers = {name: number for number, name in enumerate(notes.tests)}
        lines = {}
        for file in wanted:
            _, statements, _, _, _ = measured.analysis2(str(here / file))
            contexts = data.contexts_by_lineno(str(here / file))
            lines[file] = {
                "digest": digest((here / file).read_text()),
                "statements": statements,
                "run": {
                    line: sorted(numbers[name] for name in names if name in numbers)
                    for line, names in sorted(contexts.items())
                },
            }
    tests = [{"name": name, **test} for name, test in notes.tests.items()]
    Path(out).write_text(json.dumps({"tests": tests, "files": lines}) + "\n")


def measured_apart(tests):
    """The times and lines of tests, run by a process whose package is that of the copy."""
    code = (
        "import sys; from benchmarks.trust.coverage import measure; "
        "measure(sys.argv[2:], sys.argv[1])"
    )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "lines.json"
        subprocess.run(
            [sys.executable, "-c", code, str(out), *tests], cwd=COPY, env=environment(), check=True
        )
        return json.loads(out.read_text())


def add_tests(paths):
    """Copy tests that are new since the copy was made, and add what they run to the map."""
    known = json.loads(MAP.read_text())
    for path in paths:
        (COPY / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, COPY / path)
    MAP.write_text(json.dumps(merged(known, measured_apart(paths))) + "\n")


def merged(known, new):
    """A map of lines with those of tests that are new or were run again."""
    index = {test["name"]: number for number, test in enumerate(known["tests"])}
    numbers = [index.get(test["name"]) for test in new["tests"]]
    for at, test in enumerate(new["tests"]):
        if numbers[at] is None:
            numbers[at] = len(known["tests"])
            known["tests"].append(test)
        else:
            known["tests"][numbers[at]] = test
    for file, lines in new["files"].items():
        run = known["files"][file]["run"]
        for line, tests in lines["run"].items():
            run[line] = sorted({*run.get(line, ()), *(numbers[test] for test in tests)})
    return known


def lines_by_package(known):
    """The numbers of lines that could be run, and that were, of each package."""
    for name, group in files(COPY).items():
        total = [set(known["files"][file]["statements"]) for file in group]
        run = [{int(line) for line in known["files"][file]["run"]} for file in group]
        yield name, sum(map(len, total)), sum(len(a & b) for a, b in zip(total, run, strict=True))


def missing(known, file):
    """Ranges of lines of a file that no test runs, as text."""
    lines = known["files"][file]
    left = [line for line in lines["statements"] if str(line) not in lines["run"]]
    return ", ".join(map(str, left))


def run(cases, seed):
    """Percentages of lines that the tests run, of each package; the number of cases is fixed."""
    known = {"commit": make_copy()}
    for folder in sorted(path for path in (COPY / "tests").iterdir() if path.is_dir()):
        if (tests := str(folder.relative_to(COPY))) in LEFT_OUT or not any(folder.glob("test_*")):
            continue
        left_out = [f"--ignore={path}" for path in LEFT_OUT if path.startswith(tests)]
        new = measured_apart([*left_out, tests])
        known = merged(known, new) if "tests" in known else known | new
        MAP.write_text(json.dumps(known) + "\n")
    return summary(known)


def summary(known):
    """The lines of the page for a map of lines."""
    passed = sum(test["passed"] for test in known["tests"])
    lines = [
        Line(
            "Tests run under coverage.py",
            f"{passed:,} passed, {len(known['tests']) - passed:,} failed or were skipped",
        )
    ]
    for name, total, run_ in lines_by_package(known):
        share = 100 * run_ / total
        lines.append(
            Line(
                f"At least {SHARE:g} percent of the lines of {name} are run",
                f"{run_:,} of {total:,}: {share:.1f} percent",
                share >= SHARE,
            )
        )
    return lines


def main():
    parser = argparse.ArgumentParser(description="Show lines that no test runs; add tests.")
    parser.add_argument("--add", nargs="*", default=[], metavar="TEST", help="files of new tests")
    options = parser.parse_args()
    if options.add:
        add_tests(options.add)
    known = json.loads(MAP.read_text())
    for line in summary(known):
        print(f"{line.claim}: {line.figure}")
    for group in files(COPY).values():
        for file in group:
            if left := missing(known, file):
                print(f"{file}: {left}")


if __name__ == "__main__":
    main()
