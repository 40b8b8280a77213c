"""Faults.

Faults are made to happen in child processes: memory that runs out, Ctrl-C and kills at random
moments, full and read-only disks, clocks that jump, processes that share files, and few or many
threads. After each fault the result is the right one, or the process ends with one line that names
the reason, and no file is half written. Killed Dask workers are counted in
`tests/distributed/test_cluster.py`.
"""

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.trust.page import Line

ROOT = Path(__file__).parents[2]
RANKED = ("SharedSpanRegressor", "SpectralRegressor", "ARMULRegressor", "PenalizedERMRegressor")
FITTED = ("PooledRegressor", "PerTaskRegressor", "AdaptiveSpanRegressor", *RANKED)

# What children have in common: data, and a fit by name.
HEAD = """
import os, sys, time, warnings
import numpy as np
import sharedspan as ss

RANKED = ("SharedSpanRegressor", "SpectralRegressor", "ARMULRegressor", "PenalizedERMRegressor")

def model_of(name):
    model = getattr(ss, name)(**({"rank": 2} if name in RANKED else {}))
    return model.set_params(random_state=0) if "random_state" in model.get_params() else model

def data(n_tasks=300, d=12, n=30):
    return ss.simulate(n_tasks=n_tasks, n_features=d, rank=2, n_samples=n, random_state=0)

def fit(name, *size):
    sim = data(*size)
    return model_of(name).fit(sim.X, sim.y, task=sim.task).coef_

def tell(coef):
    print("coef", np.ascontiguousarray(coef).tobytes().hex(), flush=True)
"""


def child(code, *arguments, environment=None, prefix=(), timeout=300, **options):
    """Run code in a new Python with the names of ``HEAD``."""
    return subprocess.run(
        [*prefix, sys.executable, "-c", HEAD + code, *map(str, arguments)],
        capture_output=True, text=True, timeout=timeout, cwd=options.pop("cwd", ROOT),
        env=os.environ | {"PYTHONWARNINGS": "default"} | (environment or {}), **options,
    )  # fmt: skip


def coef_of(done):
    """The coefficients that a child told, or None."""
    told = [line for line in done.stdout.splitlines() if line.startswith("coef ")]
    return np.frombuffer(bytes.fromhex(told[-1][5:])) if told else None


def difference(found, expected):
    """The largest difference, relative to the largest coefficient."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def counted(good, total, more=""):
    return f"{good:,} of {total:,}{more}"


# ---- memory --------------------------------------------------------------------------------------

LIMITED = """
import resource
kind, name, path, extra = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
columns = {"task": "task", "target": "y"}

def run(path):
    if kind == "fit":
        sim = data() if path else data(20, 12, 30)
        return model_of(name).fit(sim.X, sim.y, task=sim.task).coef_
    return model_of(name).fit_file(path or sys.argv[5], **columns).coef_

run("")  # everything is imported and compiled
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
if extra >= 0:
    resource.setrlimit(resource.RLIMIT_AS, (size + int(extra * 2**20), resource.RLIM_INFINITY))
try:
    tell(run(path))
except MemoryError as error:
    print("memory", error)
except Exception as error:
    print("other", type(error).__name__, error)
"""


def outcome_with_memory(kind, name, folder, extra):
    """How a fit ends with only so many MiB beyond what the process has, and its coefficients."""
    paths = [folder / "large.parquet", folder / "small.parquet"] if kind == "file" else ["x", "x"]
    done = child(LIMITED, kind, name, paths[0], extra, paths[1])
    coef = coef_of(done)
    if coef is not None:
        return "fitted", coef
    if done.stdout.startswith("memory"):
        return "MemoryError", None
    if "within the memory limit" in done.stdout:
        return "one line", None
    if "OpenBLAS error: Memory allocation still failed" in done.stderr:
        return "ended by OpenBLAS", None
    return f"{kind} {name} {extra:.1f}: {done.returncode} {done.stdout}{done.stderr[-500:]}", None


def memory(cases, seed):
    """Memory runs out at random points of fits of all kinds."""
    rng = random.Random(seed)
    counts, wrong, largest = {}, [], 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size, n_tasks in (("large", 300), ("small", 20)):
            write_tables(folder / f"{size}.parquet", n_tasks)
        kinds = [("fit", name) for name in FITTED] + [("file", "AdaptiveSpanRegressor")]
        kinds.append(("file", "PooledRegressor"))
        n = max(round(6 * cases), 1)
        if cases < 1:
            kinds = rng.sample(kinds, max(round(len(kinds) * cases), 2))
        for kind in kinds:
            told, expected = outcome_with_memory(*kind, folder, -1)
            assert told == "fitted", told
            for _ in range(n):
                # Most allocations are small, so most of the limits are small, too.
                told, found = outcome_with_memory(*kind, folder, 2 ** rng.uniform(-2, 8))
                if found is not None:
                    largest = max(largest, difference(found, expected))
                is_known = told in ("fitted", "MemoryError", "one line", "ended by OpenBLAS")
                counts[told if is_known else "other"] = counts.get(told, 0) + 1
                if not is_known:
                    wrong.append(told)
    total = sum(counts.values())
    words = ", ".join(f"{count} {told}" for told, count in sorted(counts.items()))
    return [
        Line(
            "a fit whose memory runs out raises a MemoryError that names the array, or is right",
            f"{total} limits: {words}; largest difference of those fitted {largest:.1e}"
            + "".join(f"; {each}" for each in wrong[:3]),
            not wrong and largest < 1e-9,
        )
    ]


def write_tables(path, n_tasks, d=12, rows=30):
    """A Parquet or CSV file of simulated tasks."""
    from sharedspan.datasets.simulate_files import simulate_files

    simulate_files(path, n_tasks=n_tasks, n_features=d, rank=2, n_samples=rows, random_state=0)


# ---- Ctrl-C and kills ----------------------------------------------------------------------------

SIZE = ["--tasks", "400", "--features", "6", "--rank", "2"]
TABLE = ["t.csv", "--task", "task", "--target", "y"]
COMMANDS = {
    "plan": ["plan", *SIZE, "--noise", "0.5", "--error", "0.1"],
    "simulate": ["simulate", *SIZE, "--rows", "500", "--csv", "-o", "new"],
    "fit": ["fit", *TABLE, "-o", "x.span", "--coefficients", "x.csv"],
    "fit of a formula": ["fit", "t.csv", "y ~ x0 + (1 + x0 | task)", "-o", "x.span"],
    "predict": ["predict", "m.span", "t.csv", "-o", "p.csv"],
    "adapt": ["adapt", "m.span", "new.csv", "-o", "a.span"],
    "report": ["report", "m.span", "--data", "t.csv", "-o", "r.html"],
    "compare": ["compare", *TABLE, "--repeats", "2", "-o", "board.csv"],
    "demo": ["demo", "-o", "demo.png"],
    "tables": ["demo", "--tables", "tables"],
    "reproduce": ["reproduce", "table2", "--quick", "-o", "again"],
    "compile": ["compile"],
}
OUTPUTS = ("new", "x.span", "x.csv", "p.csv", "a.span", "r.html", "board.csv", "demo.png", "again",
           "tables")  # fmt: skip

# Says on a pipe that Python has started and that the command has begun.
MARKED = """
import os, sys
from sharedspan.cli import interrupt
from sharedspan.cli.__main__ import run

heed, pipe = interrupt.heed_interrupts, int(sys.argv.pop(1))

def begin():
    heed()
    os.write(pipe, b"x")

interrupt.heed_interrupts = begin
run()
"""


class Desk:
    """A folder with a table, a model and a temporary folder, for commands that are disturbed."""

    def __init__(self, folder):
        self.folder, self.temporary = Path(folder) / "work", Path(folder) / "temporary"
        self.temporary.mkdir()
        self.folder.mkdir()
        write_tables(self.folder / "t.csv", 120, 6)
        write_tables(self.folder / "new.csv", 20, 6)
        self.environment = os.environ | {"TMPDIR": str(self.temporary), "PYTHONWARNINGS": ""}
        self.run(["fit", *TABLE, "-o", "m.span"])
        self.before = self.state()

    def state(self):
        """The content of all files."""
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in files}

    def clean(self):
        for name in OUTPUTS:
            path = self.folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def run(self, arguments, **options):
        code = "from sharedspan.cli.__main__ import run; run()"
        environment = self.environment | options.pop("environment", {})
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=self.folder, env=environment,
            capture_output=True, text=True, timeout=600, **options,
        )  # fmt: skip
        if not options and not environment.get("MAY_FAIL"):
            assert done.returncode == 0, done.stderr
        return done

    def start(self, arguments):
        """A process that has just begun with a command, in a group of its own."""
        reading, writing = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-c", MARKED, str(writing), *arguments], cwd=self.folder,
            env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            pass_fds=[writing], start_new_session=True,
        )  # fmt: skip
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)
        return process

    def seconds(self, arguments):
        began = time.monotonic()
        process = self.start(arguments)
        process.communicate(timeout=600)
        assert process.returncode == 0
        self.clean()
        return time.monotonic() - began


def interrupted(desk, arguments, after):
    """What is wrong after a Ctrl-C this many seconds after the begin; nothing, if all is well."""
    process = desk.start(arguments)
    time.sleep(after)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, message = process.communicate(timeout=120)
    wrong = []
    if process.returncode == 130:
        lines = message.strip().splitlines()
        if len(lines) != 1 or not lines[0].startswith("Stopped."):
            wrong.append(f"message {message[-800:]!r}")
        left = set(desk.state()) - set(desk.before)
        whole = {name for name in left if name.startswith(("again/", "tables/"))}
        half = {name for name in whole if "sharedspan-" in name} | (left - whole)
        if half:
            wrong.append(f"files {sorted(half)}")
    elif process.returncode or "Traceback" in message:  # else it had ended before
        wrong.append(f"exit code {process.returncode}, {message[-800:]!r}")
    if remaining := list(desk.temporary.iterdir()):
        wrong.append(f"temporary files {remaining}")
    is_stopped = process.returncode == 130
    desk.clean()
    return is_stopped, f"{arguments[0]} after {after:.3f} s: {'; '.join(wrong)}" if wrong else ""


def interrupts(cases, seed, commands=tuple(COMMANDS)):
    """Ctrl-C at random moments of every command."""
    rng = random.Random(seed)
    stopped, total, wrong = 0, 0, []
    with tempfile.TemporaryDirectory() as name:
        desk = Desk(name)
        for command in commands:
            arguments = COMMANDS[command]
            seconds = desk.seconds(arguments)
            for i in range(max(round(12 * cases), 2)):
                after = rng.uniform(0, 0.05 if i % 3 == 0 else seconds)
                was_stopped, told = interrupted(desk, arguments, after)
                stopped, total = stopped + was_stopped, total + 1
                wrong += [told] if told else []
        early, before = early_interrupts(desk, max(round(100 * cases), 5), rng)
        wrong += early
    return [
        Line(
            f"Ctrl-C at any moment of {len(commands)} commands: exit code 130, one line, nothing "
            "half written",
            f"{total} interrupts, {stopped} stopped the command and {total - stopped - len(wrong)} "
            f"came after its end; {len(wrong)} otherwise" + "".join(f"; {w}" for w in wrong[:3]),
            not wrong,
        ),
        Line(
            "Ctrl-C in the first 50 ms, when Python itself may still be starting",
            before,
            not early,
        ),
    ]


def early_interrupts(desk, n, rng):
    """Ctrl-C in the first 50 ms of a new process; Python reports those before the first line."""
    ours, pythons, wrong = 0, 0, []
    for _ in range(n):
        process = subprocess.Popen(
            [sys.executable, "-m", "sharedspan.cli", *COMMANDS["plan"]], cwd=desk.folder,
            env=desk.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        time.sleep(rng.uniform(0, 0.05))
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=60)
        if (process.returncode, message) == (130, "\nStopped.\n"):
            ours += 1
        elif "in run" not in message:  # no line of the command was reached
            pythons += 1
        else:
            wrong.append(f"{process.returncode} {message[-500:]}")
    return wrong, (
        f"{n} interrupts: {ours} with exit code 130 and one line, {pythons} before the first line "
        f"of the package, which Python reports by itself; {len(wrong)} otherwise"
    )


def kills(cases, seed, commands=("fit", "simulate", "predict", "report", "reproduce")):
    """SIGKILL at random moments; then the same command runs and removes what was left."""
    rng = random.Random(seed)
    total, littered, wrong = 0, 0, []
    with tempfile.TemporaryDirectory() as name:
        desk = Desk(name)
        # A line before the names of the columns: such a table is copied to the temporary folder.
        text = (desk.folder / "t.csv").read_text()
        (desk.folder / "t.csv").write_text("A title.\n" + text)
        for command in commands:
            seconds = desk.seconds(COMMANDS[command])
            for _ in range(max(round(6 * cases), 1)):
                process = desk.start(COMMANDS[command])
                time.sleep(rng.uniform(0.3, 1.0) * seconds)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                hidden = [*desk.temporary.iterdir(), *desk.folder.rglob(".sharedspan-*")]
                littered += bool(hidden)
                total += 1
                # The last file of a simulation is in its place when all are.
                if process.returncode == 0 or list(desk.folder.rglob("truth.npz")):
                    desk.clean()
                done = desk.run(COMMANDS[command], environment={"MAY_FAIL": "1"})
                left = [*desk.temporary.iterdir(), *desk.folder.rglob(".sharedspan-*")]
                if done.returncode or left:
                    wrong.append(f"{command}: {done.returncode} {done.stderr[-300:]} {left}")
                desk.clean()
    return [
        Line(
            "after SIGKILL the same command runs, and removes the temporary files that were left",
            f"{total} kills of {len(commands)} commands, {littered} of which left files; "
            f"{len(wrong)} problems" + "".join(f"; {w}" for w in wrong[:3]),
            not wrong,
        )
    ]


# ---- disks ---------------------------------------------------------------------------------------

WRITERS = ("simulate", "fit", "fit of a formula", "predict", "adapt", "report", "compare", "demo",
           "tables", "reproduce")  # fmt: skip


@contextlib.contextmanager
def mounted(folder, *arguments):
    """A file system mounted on a folder; RuntimeError where that is not allowed."""
    try:
        done = subprocess.run(["mount", *arguments, str(folder)], capture_output=True, check=False)
    except OSError as error:
        raise RuntimeError("there is no mount") from error
    if done.returncode:
        raise RuntimeError("mounting is not allowed")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def told_in_one_line(done, folder):
    """What is wrong with a command that could not write, if anything."""
    lines = [line for line in done.stderr.strip().splitlines() if "Matplotlib" not in line]
    left = [str(path) for path in folder.rglob("*") if path.is_file() and path.stat().st_size]
    left = [name for name in left if not name.endswith(("filler", ".csv"))]
    if done.returncode not in (1, 2) or len(lines) != 1 or "Traceback" in done.stderr or left:
        return f"{done.returncode} {done.stderr[-700:]!r} {left}"
    return ""


def disks(cases, seed, commands=WRITERS):
    """Every command that writes, on a full disk and on one that may only be read."""
    lines = []
    with tempfile.TemporaryDirectory() as name:
        desk = Desk(name)
        place = desk.folder / "place"
        place.mkdir()
        for claim, mount, fill in (
            ("a full disk", ["-t", "tmpfs", "-o", "size=16k", "tmpfs"], True),
            ("a disk that may only be read", ["--bind", "-o", "ro", str(place)], False),
        ):
            wrong, total = [], 0
            try:
                with mounted(place, *mount):
                    if not fill:  # some systems heed ro only when a bind is mounted once more
                        again = ["mount", "-o", "remount,bind,ro", str(place)]
                        subprocess.run(again, check=True, capture_output=True)
                    for command in commands:
                        if fill:
                            with contextlib.suppress(OSError), open(place / "filler", "wb") as file:
                                while True:
                                    file.write(b"0" * 1024)
                                    file.flush()
                        arguments = COMMANDS[command]
                        outputs = [f"place/{a}" if a in OUTPUTS else a for a in arguments]
                        done = desk.run(outputs, environment={"MAY_FAIL": "1"})
                        told = told_in_one_line(done, place)
                        total += 1
                        wrong += [f"{command}: {told}"] if told else []
                figure = f"{total} commands, {len(wrong)} otherwise"
                figure += "".join(f"; {w}" for w in wrong[:4])
            except RuntimeError as error:
                figure = f"not tried: {error}"
            claim = f"output to {claim}: one line that names the reason, nothing half written"
            lines.append(Line(claim, figure, not wrong))
    return lines


# ---- clocks, shared files, threads ---------------------------------------------------------------

JUMPING = """
import random
rng, clocks, n_calls = random.Random(int(sys.argv[1])), {}, [0]
for clock in ("time", "monotonic", "perf_counter"):
    def jumping(own=getattr(time, clock)):
        n_calls[0] += 1
        return own() + rng.uniform(-1e9, 1e9)
    setattr(time, clock, jumping)
folder = sys.argv[2]
sim = data(60, 6, 30)
model = ss.SharedSpanRegressor(rank=2, random_state=0)
model.fit(sim.X, sim.y, task=sim.task, checkpoint=os.path.join(folder, "c"))
tell(np.concatenate([model.coef_.ravel(), fit("AdaptiveSpanRegressor", 60, 6, 30).ravel()]))
"""
STEADY = JUMPING.replace("setattr(time, clock, jumping)", "pass")


def clock(cases, seed):
    """All clocks jump by up to thirty years, back and forth, at every look."""
    n, largest, wrong = max(round(8 * cases), 1), 0.0, []
    with tempfile.TemporaryDirectory() as folder:
        expected = coef_of(child(STEADY, seed, folder))
        for i in range(n):
            path = Path(folder) / str(i)
            path.mkdir()
            done = child(JUMPING, seed + i, path)
            found = coef_of(done)
            if found is None:
                wrong.append(done.stderr[-500:])
            else:
                largest = max(largest, difference(found, expected))
    return [
        Line(
            "clocks that jump by up to 30 years at every look change no result",
            f"{n} runs of two fits, one with checkpoints; largest difference {largest:.1e}"
            + "".join(f"; {w}" for w in wrong[:3]),
            not wrong and largest < 1e-12,
        )
    ]


TOGETHER = """
kind, place, seed = sys.argv[1:4]
sim = data(60, 6, 30)
model = ss.SharedSpanRegressor(rank=2, random_state=0, tol=0, max_iter=60)
if kind == "one checkpoint":
    more = {"checkpoint": place, "checkpoint_seconds": 0}
    sim.y[:] += 0.01 * int(seed)
else:
    more = {}
while time.time() < float(sys.argv[4]):
    time.sleep(0.001)
try:
    tell(model.fit(sim.X, sim.y, task=sim.task, **more).coef_)
except ss.CheckpointError as error:
    print("refused", error)
"""


def together(kind, folder, environment=None):
    """Two processes that start the same thing at the same moment; each alone gives the truth."""
    start = time.time() + 6
    shared = str(Path(folder) / "shared")
    processes = []
    for i in range(2):
        arguments = [sys.executable, "-c", HEAD + TOGETHER, kind, shared, str(i), str(start)]
        process = subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            env=os.environ | (environment or {}),
        )  # fmt: skip
        processes.append(process)
    told = [process.communicate(timeout=300) for process in processes]
    pairs = zip(processes, told, strict=True)
    return [subprocess.CompletedProcess(p.args, p.returncode, *texts) for p, texts in pairs]


def sharing(cases, seed, kinds=("one checkpoint", "one cache folder")):
    """Two processes on one checkpoint, and on one new cache of compiled code."""
    lines = []
    n = max(round(5 * cases), 1)
    for kind in kinds:
        wrong, refused, largest, whole = [], 0, 0.0, 0
        with tempfile.TemporaryDirectory() as name:
            expected = [
                coef_of(child(TOGETHER, kind, Path(name) / f"alone{i}", i, 0)) for i in range(2)
            ]
            for i in range(n):
                folder = Path(name) / str(i)
                folder.mkdir()
                cache = {"NUMBA_CACHE_DIR": str(folder)} if kind == "one cache folder" else {}
                for done, truth in zip(together(kind, folder, cache), expected, strict=True):
                    found = coef_of(done)
                    if found is not None:
                        largest = max(largest, difference(found, truth))
                        whole += 1
                    elif done.stdout.startswith("refused"):
                        refused += 1
                    else:
                        wrong.append(done.stderr[-500:])
                if kind == "one checkpoint":
                    from sharedspan.persistence.checkpoint import Checkpoint

                    Checkpoint.read(folder / "shared")  # raises unless it is whole
                    if left := list(folder.glob(".sharedspan-*")):
                        wrong.append(str(left))
        figure = f"{n} pairs: {whole} fits are right (largest difference {largest:.1e})"
        figure += f", {refused} refused in words" if kind == "one checkpoint" else ""
        figure += f", {len(wrong)} otherwise" + "".join(f"; {w}" for w in wrong[:3])
        lines.append(
            Line(f"two processes start on {kind} at once", figure, not wrong and largest < 1e-12)
        )
    return lines


SETTINGS = {
    "one core": ({}, ("taskset", "1")),
    "BLAS with 64 threads": (
        {"OPENBLAS_NUM_THREADS": "64", "OMP_NUM_THREADS": "64", "MKL_NUM_THREADS": "64"}, ()),
    "64 threads of the package": ({"NUMBA_NUM_THREADS": "64"}, ()),
    "a cache folder that does not exist and cannot be made": (
        {"NUMBA_CACHE_DIR": "/proc/none"}, ()),
}  # fmt: skip


def threads(cases, seed, settings=(*SETTINGS, "a full cache")):
    """Fits on one core, with many threads, and where compiled code cannot be stored."""
    code = "name, *size = sys.argv[1:]; tell(fit(name, *map(int, size)))"
    names = FITTED if cases >= 1 else FITTED[2:3]
    size = (400, 20, 60)
    expected = {name: coef_of(child(code, name, *size)) for name in names}
    lines = []
    for claim, (environment, prefix) in SETTINGS.items():
        if claim not in settings:
            continue
        if prefix and not shutil.which(prefix[0]):
            lines.append(Line(claim, f"not tried: there is no {prefix[0]}"))
            continue
        largest, wrong = 0.0, []
        for name in names if "cache" not in claim else names[:1]:  # compiles everything
            done = child(code, name, *size, environment=environment, prefix=prefix)
            found = coef_of(done)
            if found is None:
                wrong.append(f"{name}: {done.stderr[-500:]}")
            else:
                largest = max(largest, difference(found, expected[name]))
        figure = f"largest difference {largest:.1e}" + "".join(f"; {w}" for w in wrong[:3])
        lines.append(Line(f"the same results with {claim}", figure, not wrong and largest < 1e-9))
    if "a full cache" in settings:
        lines.append(full_cache(expected[names[0]], code, names[0], size))
    return lines


def full_cache(expected, code, name, size):
    """The disk of the cache of compiled code is full."""
    claim = "the same results where the disk of Numba's cache is full"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with mounted(folder, "-t", "tmpfs", "-o", "size=16k", "tmpfs"):
                done = child(code, name, *size, environment={"NUMBA_CACHE_DIR": folder})
        except RuntimeError as error:
            return Line(claim, f"not tried: {error}")
    found = coef_of(done)
    if found is None:
        return Line(claim, done.stderr[-500:], False)
    largest = difference(found, expected)
    return Line(claim, f"largest difference {largest:.1e}", largest < 1e-9)


def run(cases, seed):
    """All faults."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    lines = []
    for fault in (memory, interrupts, kills, disks, clock, sharing, threads):
        lines += fault(cases, seed)
        print(f"   {fault.__name__}: {[line.figure for line in lines[-2:]]}", flush=True)
    return lines
