"""Real tables against what a user would pick instead: `python benchmarks/real_tables.py FOLDER`.

FOLDER holds school.csv, computer_survey.csv, parkinsons.csv, communities_crime.csv and
ames_housing.csv. Rows are split 75/25 within each task (tasks of 4 rows and more), ten seeds. The
best peer is chosen on five seeds and compared on the other five, both ways round. GPBoost is used
where it is installed; fit times are taken one after the other in the same run.
"""

import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import RidgeCV

import sharedspan as ss

try:
    import gpboost
except ImportError:
    gpboost = None

TABLES = {
    "school": ("school.csv", "school", "exam_score", ()),
    "survey": ("computer_survey.csv", "respondent", "like",
               ("profile", "female", "nerd", "usa", "own", "apply", "expert")),
    "parkinsons total": ("parkinsons.csv", "subject", "total_updrs", ("motor_updrs", "age", "sex")),
    "parkinsons motor": ("parkinsons.csv", "subject", "motor_updrs", ("total_updrs", "age", "sex")),
    "communities": ("communities_crime.csv", "state", "ViolentCrimesPerPop", ("fold",)),
    "ames": ("ames_housing.csv", "Neighborhood", "log10_Sale_Price", ("Sale_Price",)),
}  # fmt: skip
ALPHAS = np.logspace(-3, 5, 25)
SLOW = {("communities", "GPBoost slopes")}  # minutes a fit, and far from the best


def load(folder, name):
    file, task, target, drop = TABLES[name]
    table = pd.read_csv(folder / file)
    codes = pd.factorize(table[task])[0]
    keep = np.bincount(codes)[codes] >= 4
    X = table.drop(columns=[task, target, *drop]).to_numpy(float)
    return X[keep], table[target].to_numpy(float)[keep], pd.factorize(codes[keep])[0]


def split(task, seed):
    rng = np.random.default_rng(seed)
    train = np.zeros(len(task), dtype=bool)
    for t in np.unique(task):
        rows = rng.permutation(np.flatnonzero(task == t))
        train[rows[: max(1, round(0.75 * len(rows)))]] = True
    return train


def standardised(X, train):
    scale = X[train].std(axis=0)
    return (X - X[train].mean(axis=0)) / np.where(scale > 0, scale, 1.0)


def means(values, task, train):
    return np.array([values[train & (task == t)].mean(axis=0) for t in range(task.max() + 1)])


def shared_slopes(X, y, task, train):
    """Ridge on rows less their task means: predictions for all rows, and what they are made of."""
    Z = standardised(X, train)
    mx, my = means(Z, task, train), means(y, task, train)
    ridge = RidgeCV(ALPHAS, fit_intercept=False)
    b = ridge.fit((Z - mx[task])[train], (y - my[task])[train]).coef_
    return my[task] + (Z - mx[task]) @ b, Z, mx, my, b


def ridge_per_task(Z, y, task, train):
    out = np.zeros(len(y))
    for t in range(task.max() + 1):
        own, other = train & (task == t), ~train & (task == t)
        if other.any() and own.sum() > 2:
            out[other] = RidgeCV(ALPHAS).fit(Z[own], y[own]).predict(Z[other])
        else:
            out[other] = y[own].mean()
    return out


def trace_norm(X, y, task, train):
    """Task slopes around the pooled one with a nuclear-norm penalty, chosen on 20 % of the rows."""
    rng = np.random.default_rng(0)
    inner = train & (rng.random(len(y)) < 0.8)
    for t in range(task.max() + 1):
        if not (inner & (task == t)).any():
            inner[np.flatnonzero(train & (task == t))[0]] = True
    path = np.logspace(0, -3.5, 15)
    held = train & ~inner
    errors = [np.mean((p - y)[held] ** 2) for p in trace_path(X, y, task, inner, path)]
    return list(trace_path(X, y, task, train, path[: int(np.argmin(errors)) + 1]))[-1]


def trace_path(X, y, task, train, path):
    base, Z, mx, _, _ = shared_slopes(X, y, task, train)
    rest, C = y - base, Z - mx[task]
    own = [train & (task == t) for t in range(task.max() + 1)]
    G = np.array([C[i].T @ C[i] for i in own])
    g = np.array([C[i].T @ rest[i] for i in own])
    step = 1 / np.linalg.eigvalsh(G)[:, -1].max()
    U, top = np.zeros_like(g), np.linalg.norm(g, 2)
    for share in path:
        V, pace = U, 1.0
        for _ in range(150):
            moved = V - step * (np.einsum("tij,tj->ti", G, V) - g)
            A, s, Bt = np.linalg.svd(moved, full_matrices=False)
            new = (A * np.maximum(s - step * share * top, 0)) @ Bt
            faster = (1 + np.sqrt(1 + 4 * pace**2)) / 2
            V = new + (pace - 1) / faster * (new - U)
            done = np.linalg.norm(new - U) < 1e-5 * max(np.linalg.norm(new), 1e-9)
            U, pace = new, faster
            if done:
                break
        yield base + np.einsum("ij,ij->i", C, U[task])


def mixed_model(slopes):
    def predict(X, y, task, train):
        Z = standardised(X, train)
        design = np.column_stack([np.ones(len(Z)), Z])
        groups = task.astype(str)
        more, more_new = {}, {}
        if slopes:
            more = {
                "group_rand_coef_data": Z[train],
                "ind_effect_group_rand_coef": [1] * Z.shape[1],
            }
            more_new = {"group_rand_coef_data_pred": Z[~train]}
        model = gpboost.GPModel(likelihood="gaussian", group_data=groups[train], **more)
        began = time.perf_counter()
        model.fit(y=y[train], X=design[train], params={"trace": False})
        seconds = time.perf_counter() - began
        out = np.zeros(len(y))
        out[~train] = model.predict(
            group_data_pred=groups[~train], X_pred=design[~train], **more_new
        )["mu"]
        return out, seconds

    return predict


def ours(make):
    def predict(X, y, task, train):
        model = make()
        began = time.perf_counter()
        model.fit(X[train], y[train], task=task[train])
        seconds = time.perf_counter() - began
        return model.predict(X, task=task), seconds

    return predict


PEERS = {
    "task mean": lambda X, y, task, train: means(y, task, train)[task],
    "pooled ridge": lambda X, y, task, train: RidgeCV(ALPHAS).fit(
        standardised(X, train)[train], y[train]).predict(standardised(X, train)),
    "shared slopes": lambda *rows: shared_slopes(*rows)[0],
    "separate ridge": lambda X, y, task, train: ridge_per_task(
        standardised(X, train), y, task, train),
    "pooled + residuals": lambda X, y, task, train: (
        lambda base: base + ridge_per_task(standardised(X, train), y - base, task, train))(
        shared_slopes(X, y, task, train)[0]),
    "trace norm": trace_norm,
    "SharedSpan": ours(lambda: ss.SharedSpanRegressor(random_state=0)),
    "ARMUL": ours(lambda: ss.ARMULRegressor(random_state=0)),
}  # fmt: skip
if gpboost is not None:
    PEERS["GPBoost intercepts"] = mixed_model(slopes=False)
    PEERS["GPBoost slopes"] = mixed_model(slopes=True)


def main(folder, seeds):
    ratios = []
    adaptive = ours(ss.AdaptiveSpanRegressor)
    for name in TABLES:
        X, y, task = load(folder, name)
        errors, times = {}, {}
        for seed in range(seeds):
            train = split(task, seed)
            for method, predict in {"adaptive": adaptive, **PEERS}.items():
                if (name, method) in SLOW:
                    continue
                found = predict(X, y, task, train)
                if isinstance(found, tuple):
                    found, seconds = found
                    times.setdefault(method, []).append(seconds)
                error = np.sqrt(np.mean((found - y)[~train] ** 2))
                errors.setdefault(method, []).append(error)
        print(f"\n{name}: RMSE over {seeds} seeds, median seconds per fit")
        for method, values in sorted(errors.items(), key=lambda pair: np.mean(pair[1])):
            clock = f"{np.median(times[method]):8.3f}" if method in times else ""
            print(f"  {method:<20} {np.mean(values):10.5f} {clock}")
        half = seeds // 2
        own = np.array(errors.pop("adaptive"))
        for chosen, judged in ((slice(0, half), slice(half, None)),
                               (slice(half, None), slice(0, half))):  # fmt: skip
            best = min(errors, key=lambda m: np.mean(errors[m][chosen]))
            gap = own[judged] - np.array(errors[best])[judged]
            ratio = own[judged].mean() / np.mean(np.array(errors[best])[judged])
            error = gap.std(ddof=1) / np.sqrt(len(gap)) / np.mean(errors[best])
            ratios.append(ratio)
            print(f"  adaptive over {best}: {ratio:.4f} ± {error:.4f}")
        if "GPBoost slopes" in times:
            share = np.median(times["adaptive"]) / np.median(times["GPBoost slopes"])
            print(f"  fit time over GPBoost's random slopes: {share:.3f}")
    print(f"\ngeometric mean {np.exp(np.mean(np.log(ratios))):.4f}, largest {max(ratios):.4f}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10)
