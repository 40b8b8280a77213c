"""Columns that do not vary by task: `python benchmarks/varying.py [--sets 20]`.

Simulated tables of 100 tasks, 30 rows and 60 columns, of which five vary by task with a deviation
of 0.5, beside noise of 1. Held-out RMSE of AdaptiveSpanRegressor with nothing said, over that of
the same with the right columns named; and how often the columns that it lets vary are the right
ones.
"""

import argparse

import numpy as np

import sharedspan as ss

T, N, D, N_VARYING = 100, 30, 60, 5


def simulated(seed):
    """X, y and task of rows to fit and of as many to predict, and the columns that vary."""
    rng = np.random.default_rng(seed)
    which = rng.choice(D, N_VARYING, replace=False)
    V = np.tile(rng.standard_normal(D), (T, 1))
    V[:, which] += 0.5 * rng.standard_normal((T, N_VARYING))
    task = np.repeat(np.arange(T), 2 * N)
    X = rng.standard_normal((len(task), D))
    y = np.einsum("ij,ij->i", X, V[task]) + rng.standard_normal(T)[task]
    return X, y + rng.standard_normal(len(task)), task, np.sort(which)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=20)
    given = parser.parse_args()
    ratios, right = [], 0
    for seed in range(given.sets):
        X, y, task, which = simulated(seed)
        fits = np.tile(np.arange(2 * N) < N, T)
        errors = []
        for options in ({}, {"varying": which.tolist()}):
            model = ss.AdaptiveSpanRegressor(**options)
            model.fit(X[fits], y[fits], task=task[fits])
            residual = y[~fits] - model.predict(X[~fits], task=task[~fits])
            errors.append(np.sqrt(np.mean(residual**2)))
            if not options:
                right += sorted(model.varying_) == sorted(f"x{j}" for j in which)
        ratios.append(errors[0] / errors[1])
    print(
        f"RMSE over that with the right columns named: {np.mean(ratios):.4f} (mean of {given.sets}"
    )
    print(f"tables, largest {np.max(ratios):.4f}); the right columns in {right} of {given.sets}.")


if __name__ == "__main__":
    main()
