"""Peak memory of a fit over the memory of its statistics: `python benchmarks/memory.py`.

Each case runs in a separate process; memory is the kernel's high-water mark of resident pages,
reset just before the fit.
"""

import subprocess
import sys
import warnings

CASES = {
    "gram, 5,000 tasks x 80 rows x 100 features, rank 3": (5000, 80, 100, 3),
    "gram, 5,000 tasks x 80 rows x 100 features, rank auto": (5000, 80, 100, "auto"),
    "gram, 60,000 tasks x 40 rows x 30 features, rank 3": (60000, 40, 30, 3),
    "gram, 60,000 tasks x 40 rows x 30 features, rank auto": (60000, 40, 30, "auto"),
    "rows, 20,000 tasks x 20 rows x 100 features, rank 3": (20000, 20, 100, 3),
}


def one(n_tasks, n_samples, d, rank):
    import numpy as np
    import psutil

    import sharedspan as ss
    from sharedspan.inputs.rows import validate_rows
    from sharedspan.statistics.task_statistics import Units, collect

    warnings.simplefilter("ignore")  # four tasks, only to compile: convergence does not matter
    small = ss.simulate(n_tasks=4, n_features=d, rank=2, n_samples=n_samples, random_state=0)
    model = ss.SharedSpanRegressor(rank=rank, solver="tpgd", random_state=0)
    model.fit(small.X, small.y, task=small.task)
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(n_tasks), n_samples)
    B, W = rng.standard_normal((d, 3)) / np.sqrt(d), rng.standard_normal((3, n_tasks))
    X = rng.standard_normal((len(task), d))
    y = np.empty(len(task))
    for t in range(n_tasks):
        rows = slice(t * n_samples, (t + 1) * n_samples)
        y[rows] = X[rows] @ (B @ W[:, t]) + 0.5 * rng.standard_normal(n_samples)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = psutil.Process().memory_info().rss
    model.fit(X, y, task=task)
    with open("/proc/self/status") as file:
        peak = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
    tasks = validate_rows(X, y, task)
    statistics = collect(tasks, Units.of(tasks, True), True).nbytes
    print(
        f"statistics {statistics / 1e6:6.0f} MB, peak of the fit {(peak - before) / 1e6:6.0f} MB, "
        f"ratio {(peak - before) / statistics:.2f} (rank {model.rank_})"
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        one(*(value if value == "auto" else int(value) for value in sys.argv[1:]))
    else:
        for name, case in CASES.items():
            print(f"{name}: ", end="", flush=True)
            subprocess.run([sys.executable, __file__, *map(str, case)], check=True)
