"""Fits from sums that DuckDB makes: `python benchmarks/database.py [--rows 100_000_000]`.

Makes a table of rows in a DuckDB file (10 features in single precision and a target, from hashes of
the row's number, with the tasks of all rows mixed; 4.9 GB for 100 million rows), then, in another
process, runs the query of `ss.statistics_query` and fits SharedSpanRegressor(rank=3) to its result.
Seconds and the largest resident memory of that process are printed, and the error of the
coefficients over its theoretical floor, which shows that the fit is right. DuckDB uses two threads
and takes at most `--limit` bytes. `--folder` saves the table for the next run, and `--folds` makes
the sums of five folds and selects the rank.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FEATURES, RANK, NOISE = 10, 3, 0.5
THREADS = 2


def uniform(number, use):
    """SQL of a random number of mean zero and variance one, for a number and one of its 64 uses.

    A hash of one number: DuckDB's hashes of (i, 0), (i, 1), ... are related.
    """
    return f"((hash({number} * 64 + {use}) / 18446744073709551616.0 - 0.5) * sqrt(12.0))"


def connect(path, limit, read_only=False):
    import duckdb

    config = {"threads": THREADS, "memory_limit": f"{limit}B", "temp_directory": str(path.parent)}
    return duckdb.connect(str(path), read_only=read_only, config=config)


def make_table(path, n_rows, n_tasks, limit):
    """The table ``rows``, and ``truth`` with the coefficients of each task."""
    features = [f"x{j}" for j in range(FEATURES)]
    slopes = [
        " + ".join(f"{uniform(-1 - k, j)} * {uniform('t', 40 + k)}" for k in range(RANK))
        for j in range(FEATURES)
    ]
    slopes = ", ".join(f"{sql} AS v{j}" for j, sql in enumerate(slopes))
    with connect(path, limit) as connection:
        connection.execute(
            f"CREATE TABLE truth AS SELECT t AS task, {slopes} FROM range({n_tasks}) r(t)"
        )
        numbers = (f"CAST({uniform('i', j)} AS FLOAT) AS {x}" for j, x in enumerate(features))
        signal = " + ".join(f"v{j} * {x}" for j, x in enumerate(features))
        connection.execute(
            f"CREATE TABLE rows AS SELECT task, {', '.join(features)}, "
            f"CAST(7.0 + {signal} + {NOISE} * {uniform('i', 50)} AS FLOAT) AS y "
            f"FROM (SELECT i, CAST(hash(i * 64 + 60) % {n_tasks} AS INTEGER) AS task, "
            f"{', '.join(numbers)} FROM range({n_rows}) r(i)) JOIN truth USING (task)"
        )


def fit(path, limit, folds):
    """Query and fit in this process; prints seconds, memory and the error of the coefficients."""
    import numpy as np

    import sharedspan as ss

    rank = "auto" if folds else RANK
    small = ss.simulate(n_tasks=9, n_features=FEATURES, rank=RANK, n_samples=50, random_state=0)
    ss.SharedSpanRegressor(rank=rank).fit(small.X, small.y, task=small.task)  # compiles
    features = [f"x{j}" for j in range(FEATURES)]
    query = ss.statistics_query(features, task="task", target="y", table="rows", folds=folds)
    with connect(path, limit, read_only=True) as connection:
        began = time.perf_counter()
        sums = connection.sql(query).to_arrow_table()
        made = time.perf_counter()
        model = ss.SharedSpanRegressor(rank=rank, random_state=0).fit_statistics(sums)
        fitted = time.perf_counter()
        with open("/proc/self/status") as file:
            peak = next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))
        columns = connection.sql("SELECT * FROM truth ORDER BY task").fetchnumpy()
    task = columns.pop("task")
    truth = np.column_stack(list(columns.values()))[np.searchsorted(task, model.tasks_)]
    n_rows = sum(sums.column("n_rows").to_pylist())
    floor = ss.error_floor(n_rows / len(truth), FEATURES, len(truth), RANK, NOISE)
    print(json.dumps({
        "rows": n_rows, "tasks": len(truth), "query": made - began, "fit": fitted - made,
        "peak": peak, "rank": model.rank_,
        "over_floor": float(ss.parameter_error(model.coef_, truth) / floor),
    }))  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description="Fits from sums that DuckDB makes.")
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--limit", type=int, default=4_000_000_000, help="bytes that DuckDB takes")
    parser.add_argument("--folder", help="folder in which to save the table")
    parser.add_argument("--folds", action="store_true", help="five folds, and rank='auto'")
    parser.add_argument("--fit", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fit:
        fit(Path(options.fit), options.limit, options.folds)
        return
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(options.folder or temporary) / f"{options.rows}-{options.tasks}.duckdb"
        if not path.exists():
            began = time.perf_counter()
            make_table(path, options.rows, options.tasks, options.limit)
            size = path.stat().st_size / 1e9
            print(f"table of {size:.1f} GB in {time.perf_counter() - began:.0f} s", flush=True)
        command = [sys.executable, __file__, "--fit", str(path), "--limit", str(options.limit)]
        command += ["--folds"] * options.folds
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{found['rows']:,} rows of {found['tasks']:,} tasks: query {found['query']:.1f} s, fit "
        f"{found['fit']:.1f} s, peak {found['peak'] / 1e9:.2f} GB, rank {found['rank']}, error "
        f"{found['over_floor']:.3f} times the floor"
    )


if __name__ == "__main__":
    main()
