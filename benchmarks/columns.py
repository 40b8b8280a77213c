"""Text and dates in files: `python benchmarks/columns.py` (`--quick` for a tenth of it).

Writes two Parquet tables of 20 million rows to the temporary folder (`--folder` saves them for the
next run): one of 20 columns, of which three are text (of 3, 4 and 5 levels) and two are dates, and
one of numbers alone, with as many columns as the first has after coding. `PooledRegressor.fit_file`
then reads and fits both in turns, each in a process of its own; medians of seconds and of the
largest resident memory, and their ratios, are printed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LEVELS = {"colour": 3, "region": 4, "channel": 5}
N_NUMBERS, N_TASKS = 15, 200_000


def write_tables(folder, n_rows):
    """Both tables, with the same number of rows and of coded columns."""
    import duckdb

    numbers = [f"CAST(hash(i, {j}) % 2000 AS FLOAT) / 1000 - 1 AS x{j}" for j in range(N_NUMBERS)]
    texts = [f"'{name} ' || (hash(i, '{name}') % {n}) AS {name}" for name, n in LEVELS.items()]
    dates = [f"DATE '2020-01-01' + CAST(hash(i, '{n}') % 1500 AS INT) AS {n}" for n in ("a", "b")]
    coded = sum(n - 1 for n in LEVELS.values()) + 2
    more = [f"CAST(hash(i, {100 + j}) % 2000 AS DOUBLE) / 1000 - 1 AS z{j}" for j in range(coded)]
    for name, columns in (("mixed", texts + dates), ("numeric", more)):
        path = folder / f"{name}-{n_rows}.parquet"
        if path.exists():
            continue
        parts = [f"hash(i) % {N_TASKS} AS task", *numbers, *columns]
        parts.append("x0 + 0.5 * x1 + CAST(hash(i, 'noise') % 2000 AS DOUBLE) / 1000 - 1 AS y")
        sql = f"SELECT {', '.join(parts)} FROM range({n_rows}) AS r(i)"
        duckdb.sql(f"COPY ({sql}) TO '{path}' (FORMAT parquet)")
    return coded


def one(path):
    """Fit one table in this process and print seconds and memory."""
    import sharedspan as ss

    model = ss.PooledRegressor()
    small = ss.simulate(n_tasks=5, n_features=20, rank=3, n_samples=100, random_state=0)
    model.fit(small.X, small.y, task=small.task)  # compile before the clock starts
    began = time.perf_counter()
    model.fit_file(path, task="task", target="y")
    seconds = time.perf_counter() - began
    with open("/proc/self/status") as file:  # getrusage counts the parent process too
        peak = next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    print(json.dumps({"seconds": seconds, "peak": peak, "d": len(model.coef_names_)}))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one")
    given = parser.parse_args()
    if given.one:
        one(given.one)
        return
    n_rows = 2_000_000 if given.quick else 20_000_000
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        write_tables(folder, n_rows)
        runs = {"mixed": [], "numeric": []}
        for _ in range(given.repeats):
            for name, results in runs.items():
                command = [sys.executable, __file__, "--one", folder / f"{name}-{n_rows}.parquet"]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                results.append(json.loads(done.stdout.splitlines()[-1]))
    medians = {}
    for name, results in runs.items():
        medians[name] = [statistics.median(r[key] for r in results) for key in ("seconds", "peak")]
        seconds, peak = medians[name]
        print(f"{name:<8} {results[0]['d']} features  {seconds:7.1f} s  {peak / 1e9:5.2f} GB")
    ratios = [a / b for a, b in zip(*medians.values(), strict=True)]
    print(f"ratio    time {ratios[0]:.2f}, memory {ratios[1]:.2f}")


if __name__ == "__main__":
    main()
