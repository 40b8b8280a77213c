"""Reading files larger than memory: `python benchmarks/files.py` (`--quick` for a tenth of it).

Writes simulated Parquet files (20 million rows of 20 features and 200,000 tasks in single
precision, once with the rows of all tasks shuffled and once task by task) to the temporary folder,
and compares, in turns, each in a separate process:

    scan        DuckDB's own sorted scan: SELECT ... ORDER BY task, file, row, as Arrow batches that
                are discarded, within the memory limit
    statistics  the steps of `fit_file` before its solver starts: rows are sorted by task on disk,
                then one pass builds the statistics
    fit         SharedSpanRegressor(rank=3, solver="auto").fit_file

Medians of rows per second, their ratio, and the largest resident memory of each are printed. Both
use two threads. `--folder` saves the files for the next run, `--limit` is the memory limit.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

THREADS = 2
INTERPRETER = 500_000_000


def scan(folder, limit):
    import duckdb

    with tempfile.TemporaryDirectory() as spill:
        config = {"memory_limit": f"{limit - INTERPRETER}B", "threads": THREADS,
                  "temp_directory": spill}  # fmt: skip
        with duckdb.connect(config=config) as connection:
            source = f"read_parquet('{folder}/*.parquet', file_row_number=true)"
            rows = connection.sql(
                f"SELECT task, y, COLUMNS('x[0-9]+') FROM {source} "
                "ORDER BY task, file_index, file_row_number"
            )
            return sum(batch.num_rows for batch in rows.to_arrow_reader(1 << 16))


def build_statistics(folder, limit):
    from sharedspan.inputs.external_sort import open_files
    from sharedspan.statistics.task_statistics import gather

    with open_files(folder, task="task", target="y", memory_limit=limit).open() as tasks:
        gather(tasks, centred=True)
        return tasks.n_rows


def fit(folder, limit):
    import sharedspan as ss

    model = ss.SharedSpanRegressor(rank=3, solver="auto", random_state=0)
    model.fit_file(folder, task="task", target="y", memory_limit=limit)


def one(what, folder, limit):
    """Run one contender in this process and print seconds, rows and memory."""
    import sharedspan as ss

    if what != "scan":  # compile before the clock starts
        small = ss.simulate(n_tasks=5, n_features=20, rank=3, n_samples=100, random_state=0)
        model = ss.SharedSpanRegressor(rank=3, solver="auto", random_state=0)
        model.fit(small.X, small.y, task=small.task)
    began = time.perf_counter()
    rows = {"scan": scan, "statistics": build_statistics, "fit": fit}[what](folder, limit)
    seconds = time.perf_counter() - began
    with open("/proc/self/status") as file:  # getrusage counts the parent process too
        peak = next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    print(json.dumps({"seconds": seconds, "rows": rows, "peak": peak}))


def run(what, folder, limit):
    done = subprocess.run(
        [sys.executable, __file__, "--one", what, "--folder", folder, "--limit", str(limit)],
        capture_output=True, text=True, check=True,
        env=os.environ | {"NUMBA_NUM_THREADS": str(THREADS)},
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def compare(name, folder, limit, turns):
    runs = {"scan": [], "statistics": []}
    for _ in range(turns):
        for what, results in runs.items():
            results.append(run(what, folder, limit))
    speed = {
        what: statistics.median(each["rows"] / each["seconds"] for each in results)
        for what, results in runs.items()
    }
    peak = {what: max(each["peak"] for each in results) for what, results in runs.items()}
    whole = run("fit", folder, limit)
    print(
        f"{name}: scan {speed['scan'] / 1e6:.2f}, statistics {speed['statistics'] / 1e6:.2f} "
        f"million rows/s, ratio {speed['scan'] / speed['statistics']:.2f} (below 1 we are faster); "
        f"peak {peak['scan'] / 1e9:.2f} and {peak['statistics'] / 1e9:.2f} GB; "
        f"whole fit {whole['seconds']:.1f} s, {whole['peak'] / 1e9:.2f} GB",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description="Reading files larger than memory.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows and tasks")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--limit", type=int, default=2_000_000_000, help="bytes")
    parser.add_argument("--folder", help="folder in which to save the files")
    parser.add_argument("--one", choices=["scan", "statistics", "fit"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.one, options.folder, options.limit)
        return
    from sharedspan.datasets.simulate_files import simulate_files

    n_tasks = 20_000 if options.quick else 200_000
    with tempfile.TemporaryDirectory() as temporary:
        for name, shuffle in (("rows shuffled", True), ("task by task", False)):
            folder = Path(options.folder or temporary) / f"{name.replace(' ', '-')}-{n_tasks}"
            if not folder.exists():
                simulate_files(
                    folder, n_tasks=n_tasks, n_features=20, rank=3, n_samples=100, random_state=0,
                    dtype="float32", shuffle=shuffle, rows_per_file=2_000_000,
                )  # fmt: skip
            compare(name, str(folder), options.limit, options.turns)


if __name__ == "__main__":
    main()
