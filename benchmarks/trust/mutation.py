"""Mutants that the tests notice.

One small change at a time is made to a line of the mathematics that some test runs: a sign, a
comparison, a constant, a bound of a slice, a condition, a default, a value that is returned, or a
statement that is left out. The fastest tests that run this line, from as many files of tests as
possible, must then fail. The changed module exists in the memory of one process only. A sample is
drawn at random, in every package in proportion to its lines. A survivor is either a change that
no result depends on, and then its reason is written down, or a gap of the tests.
"""

import argparse
import contextlib
import hashlib
import importlib
import importlib.machinery
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from benchmarks.trust.coverage import COPY, MAP, ROOT, WORK, Notes, digest, files
from benchmarks.trust.mutants import mutants, mutated
from benchmarks.trust.page import Line

SAMPLE = 1200
SHARE = 85.0  # percent that must be killed
MOST_TESTS, MOST_SECONDS = 80, 40.0  # of tests for one mutant
OWN_TESTS = {
    "objective": ("tests/objective", "tests/solvers"),
    "families": ("tests/mixed_model", "tests/estimators"),
    "columns of tables": ("tests/inputs", "tests/formula"),
}  # of other packages, those in the folder of the same name
KILLED = ("killed", "timeout")
RESULTS = WORK / "mutants.jsonl"
REASONS = Path(__file__).parent / "survivors.json"
# Imported once, before processes are forked. All but the first are optional.
HEAVY = ("pytest", "numpy", "numba", "scipy.stats", "scipy.optimize", "scipy.linalg",
         "sklearn.base", "sklearn.linear_model", "sklearn.model_selection", "pandas", "duckdb",
         "pyarrow", "matplotlib", "torch", "statsmodels.api")  # fmt: skip


# ---- which mutants, and which tests --------------------------------------------------------------


def candidates(known, root):
    """All mutants of lines that tests run, by package, with the numbers of these tests."""
    found = defaultdict(list)
    for package, group in files(root).items():
        for file in group:
            source = (Path(root) / file).read_text()
            lines = known["files"].get(file)
            if lines is None or lines.get("digest", digest(source)) != digest(source):
                print(f"{file} has changed since the map was made, and is left out")
                continue
            run = {int(line): tests for line, tests in lines["run"].items()}
            for mutant in mutants(file, source):
                if tests := covering(mutant, run, source):
                    found[package].append((mutant, tests))
    return dict(found)


def covering(mutant, run, source):
    """Numbers of the tests that run the line of a mutant.

    A line that runs when the module is imported counts as run by the tests of the lines that use
    the name that it defines, or of all lines of its function, class or file.
    """
    if not mutant.at_import:
        return set(run.get(mutant.statement, ()))
    lines = source.splitlines()
    name = mutant.function.rsplit(".", 1)[-1] or lines[mutant.statement - 1].split()[0].rstrip(":,")
    users = [n for n in run if name in lines[n - 1] and n != mutant.statement]
    return set().union(*(run[n] for n in users)) or set().union(*run.values())


def drawn(found, known, size, seed):
    """A sample of mutants, by package in proportion to the lines that tests run, in random order.

    A mutant is drawn by a random number that belongs to its key, so that new tests hardly change
    the sample.
    """

    def order(pair):
        return hashlib.sha256(f"{seed} {pair[0].number}".encode()).digest()

    lines = {
        package: sum(
            len(known["files"][file]["run"]) for file in {mutant.file for mutant, _ in group}
        )
        for package, group in found.items()
    }
    share = size / sum(lines.values())
    chosen = []
    for package, group in found.items():
        n = min(len(group), max(1, round(share * lines[package])))
        chosen += [(package, *pair) for pair in sorted(group, key=order)[:n]]
    return sorted(chosen, key=lambda one: order(one[1:]))


def selected(tests, seconds, folders=(), budget=MOST_SECONDS):
    """Names of tests within the budget, fastest first.

    One case of each function of tests is taken before a second case of any: first those in some
    folders, and the fastest first.
    """
    by_function = defaultdict(list)
    for name in sorted(tests, key=lambda name: (seconds[name], name)):
        by_function[name.partition("[")[0]].append(name)
    turns = sorted(
        (turn, not name.startswith(folders), seconds[name], name)
        for group in by_function.values()
        for turn, name in enumerate(group)
    )
    names, spent = [], 0.0
    for _, _, cost, name in turns:
        if len(names) < MOST_TESTS and spent + cost <= budget:
            names.append(name)
            spent += cost
    if not names and turns:  # one test that takes longer than the budget
        names = [min(tests, key=lambda name: (seconds[name], name))]
    return sorted(names, key=lambda name: (seconds[name], name))


# ---- processes -----------------------------------------------------------------------------------


class OneModule:
    """A finder of the import system that gives one module another source tree."""

    def __init__(self, name, path, tree):
        self.name, self.path, self.tree = name, str(path), tree

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.name:
            return None
        package = self.path.endswith("__init__.py")
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=self.path, is_package=package)
        spec.has_location = True
        if package:
            spec.submodule_search_locations = [str(Path(self.path).parent)]
        return spec

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(compile(self.tree, self.path, "exec"), module.__dict__)


class Watch(Notes):
    """Notes the tests, and ends the process when one takes far longer than it should."""

    def __init__(self, seconds):
        class Nothing:
            def switch_context(self, name):
                pass

        super().__init__(Nothing())
        self.seconds, self.grace = seconds, 20.0

    def pytest_runtest_protocol(self, item):
        limit = self.grace + max(10.0, 5 * self.seconds.get(item.nodeid, 60.0))
        signal.setitimer(signal.ITIMER_PROF, limit)  # CPU seconds, so that load does not count
        self.grace = 0.0  # the first test imports most
        super().pytest_runtest_protocol(item)


def prepare(root, scratch):
    """Import what is heavy, and turn away from the source tree all that tests may write."""
    os.environ.update(
        dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
        HYPOTHESIS_STORAGE_DIRECTORY=str(scratch / "hypothesis"),
        NUMBA_CACHE_DIR=str(WORK / "numba"),
        PYTHONHASHSEED="0",
        MPLBACKEND="Agg",
    )
    sys.pycache_prefix = str(WORK / "bytecode")
    os.chdir(root)
    here = str(ROOT)
    sys.path[:] = [str(root / "src"), *(path for path in sys.path if path not in ("", here))]
    for name in HEAVY:
        try:
            importlib.import_module(name)
        except ImportError:
            print(f"{name} is not installed: tests that need it are left out")
    # No mutant is in the kernels, and they import nothing of the packages that have some.
    for file in sorted((root / "src/sharedspan/kernels").glob("*.py")):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"sharedspan.kernels.{file.stem}")
    assert "sharedspan.objective" not in sys.modules


def load_kernels():
    """Load the machine code that earlier processes have stored, once for all forked processes."""
    from sharedspan.kernels.compiling import KERNELS

    for kernel in KERNELS:
        with contextlib.suppress(Exception):  # what is not loaded here is loaded when called
            for signature, *_ in kernel._cache._cache_file._load_index():
                kernel.compile(signature)


def test_process(task, folder, out):
    """Run tests in this forked process, and write their outcome."""
    tests, seconds, module = task
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silent, stream)
    folder.mkdir(parents=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]
    resource.setrlimit(resource.RLIMIT_AS, (16 * 2**30, resource.RLIM_INFINITY))
    if module is not None:
        sys.meta_path.insert(0, OneModule(*module))
    import pytest

    watch = Watch(seconds)
    first = [] if module is None else ["-x"]
    options = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", "--tb=no", "--no-header", *first]
    rc = pytest.main([*options, f"--basetemp={folder}/pytest", *tests], plugins=[watch])
    out.write_text(json.dumps({"rc": int(rc), "tests": watch.tests}))


def in_processes(tasks, workers, deadline, scratch):
    """Run tasks in forked processes; yield each with its outcome, None for one that was ended."""
    tasks, running, number = iter(tasks), {}, 0
    while True:
        while len(running) < workers and time.monotonic() < deadline:
            task = next(tasks, None)
            if task is None:
                break
            number += 1
            folder, out = scratch / f"process{number}", scratch / f"outcome{number}.json"
            wall = 90 + 5 * sum(task[1].get(name, 60.0) for name in task[0])
            pid = os.fork()
            if pid == 0:
                try:
                    os.setsid()
                    test_process(task, folder, out)
                finally:
                    os._exit(0)
            running[pid] = task, folder, out, time.monotonic(), wall
        if not running:
            return
        pid, _, used = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            now = time.monotonic()
            for other, (*_, began, wall) in running.items():
                if now > min(deadline, began + wall):
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(other, signal.SIGKILL)
            time.sleep(0.02)
            continue
        if pid not in running:
            continue
        task, folder, out, began, wall = running.pop(pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # whatever it has left running
        shutil.rmtree(folder, ignore_errors=True)
        outcome = json.loads(out.read_text()) if out.exists() else None
        out.unlink(missing_ok=True)
        if outcome is None and time.monotonic() > deadline and time.monotonic() - began < wall:
            continue  # ended because the time was up: not an outcome
        yield task, outcome, used.ru_utime + used.ru_stime


# ---- a run ---------------------------------------------------------------------------------------


def read_results(out):
    """The last result of each mutant, by its key, and the CPU seconds of tests that pass here."""
    results, baseline = {}, {}
    if Path(out).exists():
        for line in Path(out).read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # a line that was cut off
                one = json.loads(line)
                if "baseline" in one:
                    baseline |= one["baseline"]
                    continue
                key = tuple(one["key"])
                # Once killed, always killed: tests are only added.
                if key not in results or results[key]["outcome"] not in KILLED:
                    results[key] = one
    return results, baseline


def run_sample(
    known,
    out,
    *,
    size=SAMPLE,
    seed=0,
    workers=1,
    seconds=1e9,
    again=False,
    here=False,
    root=None,
    only=(),
    budget=MOST_SECONDS,
):
    """Test a sample of mutants, and append the results to a file; known ones are not repeated.

    With ``here`` the map is of this machine, so that all its tests that passed need not run first.
    With ``again`` the survivors among the known results, and mutants that had no test, are tested
    instead, unless the same tests would run; with ``only`` by the tests whose names begin so.
    ``budget`` is what the tests of a mutant may take, in CPU seconds.
    """
    deadline = time.monotonic() + seconds - min(15.0, seconds / 10)
    root = Path(root or (COPY if COPY.exists() else ROOT)).resolve()
    results, baseline = read_results(out)
    found = candidates(known, root)
    if again:
        todo = [
            (package, *pair)
            for package, group in found.items()
            for pair in group
            if results.get(pair[0].key, {"outcome": ""})["outcome"] in ("survived", "no test here")
        ]
    else:
        sample = drawn(found, known, size, seed)
        todo = [one for one in sample if one[1].key not in results]
    if not todo:
        return results
    before = Path.cwd()
    scratch = Path(tempfile.mkdtemp(prefix="mutation"))
    out = Path(out).resolve()
    WORK.mkdir(parents=True, exist_ok=True)
    try:
        prepare(root, scratch)
        plan = [
            ((package, mutant), names)
            for (package, mutant), names in plan_of(todo, known, only, budget)
            if names and results.get(mutant.key, {}).get("tried") != tried(names)
        ]
        if here:
            baseline = {t["name"]: t["cpu"] for t in known["tests"] if t["passed"]}
        elif again:  # tests that did not pass on another machine may pass here
            baseline = {name: cost for name, cost in baseline.items() if cost is not None}
        missing = sorted({name for _, names in plan for name in names if name not in baseline})
        if missing:
            new = run_baseline(missing, known, workers, deadline, scratch)
            baseline |= new
            _append(out, {"baseline": new})
        load_kernels()
        print(f"{len(plan)} mutants to test, {len(results)} known", flush=True)
        _run_mutants(plan, baseline, root, out, workers, deadline, scratch)
    finally:
        os.chdir(before)
        shutil.rmtree(scratch, ignore_errors=True)
    return read_results(out)[0]


def plan_of(todo, known, only=(), budget=MOST_SECONDS):
    """Mutants and the names of the tests for each, by the times of the map."""
    cpu = {
        test["name"]: test.get("cpu", 0.0)
        for test in known["tests"]
        if test["passed"] and (not only or test["name"].startswith(tuple(only)))
    }
    plan = []
    for package, mutant, numbers in todo:
        names = {known["tests"][number]["name"] for number in numbers} & cpu.keys()
        folders = OWN_TESTS.get(package, (f"tests/{package}",))
        plan.append(((package, mutant), selected(names, cpu, folders, budget)))
    return plan


def run_baseline(names, known, workers, deadline, scratch):
    """CPU seconds of the tests that pass here without any mutant; None for the others."""
    cpu = {test["name"]: test.get("cpu", 60.0) for test in known["tests"]}
    groups, piece, cost = [], [], 0.0
    for name in names:  # in pieces of some seconds, so that all workers have work
        piece.append(name)
        cost += cpu.get(name, 60.0)
        if cost > 20:
            groups.append((cost, piece))
            piece, cost = [], 0.0
    groups.append((cost, piece))
    tasks = [(piece, cpu, None) for _, piece in sorted(groups, reverse=True) if piece]
    print(f"{len(names)} tests without a mutant, in {len(tasks)} processes", flush=True)
    passed = {}
    for (piece, *_), outcome, _ in in_processes(tasks, workers, deadline, scratch):
        tests = outcome["tests"] if outcome else {}
        for name in piece:
            test = tests.get(name, {"passed": False})
            passed[name] = test.get("cpu") if test["passed"] else None
    left = [name for name, cost in passed.items() if cost is None]
    print(f"{len(passed) - len(left)} tests pass here, {len(left)} do not: {left[:10]}", flush=True)
    return passed


def _run_mutants(plan, baseline, root, out, workers, deadline, scratch):
    sources, about = {}, {}
    began, done, survived = time.monotonic(), 0, 0

    def tasks():
        for (package, mutant), planned in plan:
            names = [name for name in planned if baseline.get(name) is not None]
            if not names:
                _append(out, record(package, mutant, "", planned, "no test here", None, 0.0))
                continue
            source = sources.setdefault(mutant.file, (root / mutant.file).read_text())
            tree, text = mutated(source, mutant)
            module = mutant.file.removeprefix("src/").removesuffix(".py").replace("/", ".")
            module = module.removesuffix(".__init__")
            task = (names, baseline, (module, root / mutant.file, tree))
            about[id(task)] = task, planned, package, mutant, text
            yield task

    for task, outcome, cpu in in_processes(tasks(), workers, deadline, scratch):
        _, planned, package, mutant, text = about.pop(id(task))
        ending, by = "timeout", None
        if outcome is not None:
            ending = "survived" if outcome["rc"] == 0 else "killed"
            by = next((n for n, test in outcome["tests"].items() if not test["passed"]), None)
        done, survived = done + 1, survived + (ending == "survived")
        _append(out, record(package, mutant, text, planned, ending, by, cpu))
        minutes = (time.monotonic() - began) / 60
        print(f"{done} of {len(plan)}, {survived} survived, {minutes:.1f} minutes: {ending} "
              f"{mutant.file}:{mutant.line} {mutant.change}", flush=True)  # fmt: skip


def tried(names):
    """A short name of a list of tests."""
    return digest("\n".join(names))


def record(package, mutant, text, names, ending, by, cpu):
    """A line of the file of results."""
    return {
        "key": mutant.key,
        "package": package,
        "line": mutant.line,
        "mutated": " ".join(text.split("\n", 1)[0].split())[:300],
        "outcome": ending,
        "by": by,
        "tests": len(names),
        "tried": tried(names),
        "cpu": round(cpu, 2),
    }


def _append(out, one):
    with Path(out).open("a") as file:
        file.write(json.dumps(one) + "\n")


# ---- survivors and figures -----------------------------------------------------------------------


def read_reasons():
    """Reasons of survivors, by the keys of their mutants."""
    if not REASONS.exists():
        return {}
    return {tuple(one["key"]): one["reason"] for one in json.loads(REASONS.read_text())}


def survivors(results):
    return [one for one in results.values() if one["outcome"] == "survived"]


def show_survivors(results, *, every=False):
    """Print survivors for which no reason is written down."""
    reasons = read_reasons()
    for one in sorted(survivors(results), key=lambda one: (one["key"][0], one["line"])):
        reason = reasons.get(tuple(one["key"]))
        if reason is None or every:
            file, function, source, change, which = one["key"]
            print(f"{file}:{one['line']} in {function or 'the module'}, {change}, number {which}")
            print(f"  - {source}\n  + {one['mutated']}" + (f"\n  {reason}" if reason else ""))


def summary(results):
    """The lines of the page."""
    tested = [one for one in results.values() if one["outcome"] != "no test here"]
    reasons = read_reasons()
    left = survivors(results)
    with_reason = sum(tuple(one["key"]) in reasons for one in left)

    def share(group):
        killed = sum(one["outcome"] != "survived" for one in group)
        return f"{killed:,} of {len(group):,}: {100 * killed / len(group):.1f} percent", (
            100 * killed / len(group) >= SHARE
        )

    lines = [Line(f"At least {SHARE:g} percent of all mutants are killed", *share(tested))]
    for package in sorted({one["package"] for one in tested}):
        group = [one for one in tested if one["package"] == package]
        lines.append(Line(f"{package}: at least {SHARE:g} percent", *share(group)))
    lines.append(
        Line(
            "Survivors that have a reason why no result depends on them",
            f"{with_reason:,} of {len(left):,}",
        )
    )
    return lines


def run(cases, seed):
    """Test a sample of mutants that have no result yet, and count all."""
    known = json.loads(MAP.read_text())
    workers = max(1, (os.cpu_count() or 2) // 2)
    size = round(SAMPLE * cases)
    results = run_sample(known, RESULTS, size=size, seed=seed, workers=workers, here=True)
    return summary(results)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="test mutants, and append results to a file")
    runs.add_argument("--map", type=Path, default=MAP, help="lines that tests run, of `coverage`")
    runs.add_argument("--out", type=Path, default=RESULTS, help="results, which are added to")
    runs.add_argument("--size", type=int, default=SAMPLE, help="of the sample")
    runs.add_argument("--seed", type=int, default=0)
    runs.add_argument("--workers", type=int, default=1, help="processes at a time")
    runs.add_argument("--seconds", type=float, default=1e9, help="stop before they are over")
    runs.add_argument("--root", type=Path, help="the checkout of the map")
    runs.add_argument("--site", type=Path, help="a folder of more packages to import")
    runs.add_argument("--again", action="store_true", help="test the survivors of the file again")
    runs.add_argument("--only", nargs="+", default=(), metavar="TEST", help="with --again: tests")
    runs.add_argument("--budget", type=float, default=MOST_SECONDS, help="seconds of tests each")
    runs.add_argument("--here", action="store_true", help="the map is of this machine")
    shows = commands.add_parser("survivors", help="show survivors without a reason")
    shows.add_argument("results", type=Path, nargs="?", default=RESULTS)
    shows.add_argument("--all", action="store_true", help="those with a reason, too")
    options = parser.parse_args()
    if options.command == "survivors":
        show_survivors(read_results(options.results)[0], every=options.all)
        return
    if options.site:
        sys.path.append(str(options.site.resolve()))
    known = json.loads(options.map.read_text())
    results = run_sample(
        known, options.out, size=options.size, seed=options.seed, workers=options.workers,
        seconds=options.seconds, again=options.again, here=options.here, root=options.root,
        only=options.only, budget=options.budget,
    )  # fmt: skip
    for line in summary(results) if results else ():
        print(f"{line.claim}: {line.figure}")


if __name__ == "__main__":
    main()
