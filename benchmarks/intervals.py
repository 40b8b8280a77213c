"""Coverage of nominal 95 percent intervals: `python benchmarks/intervals.py [data sets]`.

Each data set has tasks that are fitted and as many that are not; the latter get the span of the
fit by `NewTaskRegressor.from_model` on as many rows. Intervals of coefficients come from
`coef_interval`; a new response is covered within 1.96 of its standard deviation. Means over tasks
and data sets, with the standard error of the coefficients' mean over data sets.
"""

import sys

import numpy as np

import sharedspan as ss

CASES = [  # (T, d, k, n_t, least coverage, largest)
    (40, 20, 2, 10, 0.93, 0.97),
    (40, 20, 2, 40, 0.93, 0.97),
    (40, 20, 2, 200, 0.93, 0.97),
    (30, 30, 2, 15, 0.91, 1.0),
    (100, 40, 3, 20, 0.91, 1.0),
]
NEW_RESPONSES = 20  # of each task
NORMAL_QUANTILE = 1.959964


def covered_coefficients(model, coef):
    low, high = model.coef_interval(0.95)
    return np.mean((low <= coef) & (coef <= high))


def covered_responses(model, coef, noise, rng):
    task = np.repeat(np.arange(len(coef)), NEW_RESPONSES)
    X = rng.standard_normal((len(task), coef.shape[1]))
    y = np.einsum("ij,ij->i", X, coef[task]) + noise * rng.standard_normal(len(task))
    mean, std = model.predict(X, task, return_std=True)
    return np.mean(np.abs(y - mean) <= NORMAL_QUANTILE * std)


def coverage(T, d, k, n, seed, noise=0.5):
    """Of coefficients and responses, of fitted and of new tasks, (4,)."""
    sim = ss.simulate(
        n_tasks=2 * T, n_features=d, rank=k, n_samples=n, noise=noise, condition_number=1.5,
        random_state=seed,
    )  # fmt: skip
    rng = np.random.default_rng([seed, 1])
    known = sim.task < T
    model = ss.SharedSpanRegressor(rank=k, random_state=0)
    model.fit(sim.X[known], sim.y[known], task=sim.task[known])
    new = ss.NewTaskRegressor.from_model(model)
    new.fit(sim.X[~known], sim.y[~known], task=sim.task[~known] - T)
    return [
        covered(fit, coef, *more)
        for fit, coef in ((model, sim.coef[:T]), (new, sim.coef[T:]))
        for covered, more in ((covered_coefficients, ()), (covered_responses, (noise, rng)))
    ]


if __name__ == "__main__":
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
    columns = ("fitted: coef", "response", "new: coef", "response")
    print(f"{'T, d, k, n_t':<18}" + "".join(f"{name:>18}" for name in columns) + "   bound")
    for T, d, k, n, least, largest in CASES:
        table = np.array([coverage(T, d, k, n, seed) for seed in seeds])
        means, errors = table.mean(axis=0), table.std(axis=0) / len(table) ** 0.5
        cells = "".join(f"{m:>10.3f} ± {e:.3f}" for m, e in zip(means, errors, strict=True))
        print(f"{T}, {d}, {k}, {n:<8}" + cells + f"   {least} to {largest}", flush=True)
