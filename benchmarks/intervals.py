"""Coverage of 95 percent intervals: `python benchmarks/intervals.py [data sets] [estimator]`.

Each data set has tasks that are fitted and as many that are not; the latter get the span of the
fit by `NewTaskRegressor.from_model` on as many rows, and are also predicted without any rows, by
the mean task, if the estimator models the population of tasks. Intervals come from `coef_interval`
and `predict_interval`. Means over tasks and data sets, with standard errors over data sets.
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


def covered_coefficients(model, coef):
    low, high = model.coef_interval(0.95)
    return np.mean((low <= coef) & (coef <= high))


def covered_responses(model, coef, noise, rng, first=0):
    task = np.repeat(np.arange(len(coef)), NEW_RESPONSES) + first
    X = rng.standard_normal((len(task), coef.shape[1]))
    y = np.einsum("ij,ij->i", X, coef[task - first]) + noise * rng.standard_normal(len(task))
    low, high = model.predict_interval(X, task, level=0.95)
    return np.mean((low <= y) & (y <= high))


def coverage(estimator, T, d, k, n, seed, noise=0.5):
    """Of coefficients and responses, of fitted and of new tasks; last, without rows, (5,)."""
    sim = ss.simulate(
        n_tasks=2 * T, n_features=d, rank=k, n_samples=n, noise=noise, condition_number=1.5,
        random_state=seed,
    )  # fmt: skip
    rng = np.random.default_rng([seed, 1])
    known = sim.task < T
    adaptive = estimator == "AdaptiveSpanRegressor"
    model = getattr(ss, estimator)(
        random_state=0, unseen="mean", **({} if adaptive else {"rank": k})
    )
    model.fit(sim.X[known], sim.y[known], task=sim.task[known])
    new = ss.NewTaskRegressor.from_model(model)
    new.fit(sim.X[~known], sim.y[~known], task=sim.task[~known] - T)
    covered = [
        covered(fit, coef, *more)
        for fit, coef in ((model, sim.coef[:T]), (new, sim.coef[T:]))
        for covered, more in ((covered_coefficients, ()), (covered_responses, (noise, rng)))
    ]
    unseen = covered_responses(model, sim.coef[T:], noise, rng, first=T) if adaptive else np.nan
    return [*covered, unseen]


if __name__ == "__main__":
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
    estimator = sys.argv[2] if len(sys.argv) > 2 else "AdaptiveSpanRegressor"
    columns = ("fitted: coef", "response", "new: coef", "response", "without rows")
    print(f"{estimator:<22}" + "".join(f"{name:>18}" for name in columns) + "   bound")
    for T, d, k, n, least, largest in CASES:
        table = np.array([coverage(estimator, T, d, k, n, seed) for seed in seeds])
        means, errors = table.mean(axis=0), table.std(axis=0) / len(table) ** 0.5
        cells = "".join(f"{m:>10.3f} ± {e:.3f}" for m, e in zip(means, errors, strict=True))
        print(f"{f'{T}, {d}, {k}, {n}':<22}" + cells + f"   {least} to {largest}", flush=True)
