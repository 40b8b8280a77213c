"""Every system of the paper side by side, one table: `python benchmarks/systems.py [seeds]`.

R is parameter error over the floor, mean over seeds; seconds and memory are for one fit at
d=100, T=200, k=5, N=300, memory relative to the statistics (packed Grams, or the rows for the
systems that draw or split rows).
"""

import sys
import time
import tracemalloc
import warnings

import numpy as np

import sharedspan as ss

SIZE = {"n_tasks": 40, "n_features": 50, "rank": 3, "n_samples": 200, "noise": 0.5}
LARGE = {"n_tasks": 200, "n_features": 100, "rank": 5, "n_samples": 300, "noise": 0.5}
BOUNDS = {
    "separate least squares": "9.5 to 11",
    "moments: tripuraneni": "20 to 35",
    "moments: niu": "7 to 11",
    "moments: niu, symmetrised": "4.2 to 6.2",
    "moments: duchi": "4.2 to 6.2",
    "spectral": "1.05 to 1.35",
    "altmin_gd, halves": "1.4 to 2.0",
    "nsgd, tail average": "at most 1.15",
    "nsgd, last iterate": "",
    "altmin_gd, theory": "",
    "moments: duchi, whitened": "",
}


def systems(k):
    common = {"rank": k, "fit_intercept": False, "random_state": 0}
    plain = {**common, "whiten": False}

    def likelihood(solver, max_iter=20_000, tail_average=False, **options):
        return lambda: ss.SharedSpanRegressor(
            solver=solver,
            max_iter=max_iter,
            tail_average=tail_average,
            solver_options=options,
            **common,
        )

    listed = {
        "separate least squares": lambda: ss.PerTaskRegressor(alpha=0.0, fit_intercept=False),
        "moments: tripuraneni": lambda: ss.MomentRegressor(variant="tripuraneni", **plain),
        "moments: niu": lambda: ss.MomentRegressor(variant="niu", symmetrise=False, **plain),
        "moments: niu, symmetrised": lambda: ss.MomentRegressor(variant="niu", **plain),
        "moments: duchi": lambda: ss.MomentRegressor(**plain),
        "moments: duchi, whitened": lambda: ss.MomentRegressor(**common),
        "spectral": lambda: ss.SpectralRegressor(**common),
        "altmin_gd, halves": likelihood("altmin_gd", split="half"),
        "altmin_gd, theory": likelihood("altmin_gd", split="theory", start="moment"),
        "nsgd, last iterate": likelihood("nsgd", 3000),
        "nsgd, tail average": likelihood("nsgd", 3000, tail_average=True),
    }
    for name in ss.SOLVERS:
        if name not in ("nsgd", "phase_one", "phase_two"):
            listed[name] = likelihood(name)
    if hasattr(ss, "ARMULRegressor"):
        listed["ARMUL low-rank, CV"] = lambda: ss.ARMULRegressor(**common)
        listed["pERM"] = lambda: ss.PenalizedERMRegressor(**common)
    return listed


def accuracy(seeds):
    print(f"{'system':<28} {'R':>7} {'bound':>14} {'outliers':>9} {'seconds':>8} {'memory':>7}")
    large = ss.simulate(**LARGE, condition_number=2.0, random_state=0)
    grams = LARGE["n_tasks"] * (100 * 101 // 2 + 3 * 100) * 8
    rows = large.X.nbytes
    sims = [ss.simulate(**SIZE, condition_number=1.5, random_state=s) for s in seeds]
    spoiled = [
        ss.simulate(**SIZE, condition_number=1.5, outliers=0.1, random_state=s) for s in seeds
    ]
    floor = ss.error_floor(200, 50, 40, 3, 0.5)
    inliers = [~sim.is_outlier for sim in spoiled]
    separate = None
    for (name, make), wide in zip(systems(3).items(), systems(5).values(), strict=True):
        ratio = np.mean([ss.parameter_error(fit(make(), s).coef_, s.coef) for s in sims]) / floor
        error = np.mean(
            [
                np.sum((fit(make(), s).coef_ - s.coef)[i] ** 2)
                for s, i in zip(spoiled, inliers, strict=True)
            ]
        )
        separate = separate or error
        began = time.perf_counter()
        fit(wide(), large)
        seconds = time.perf_counter() - began
        tracemalloc.start()
        fit(wide(), large)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        held = rows if name.startswith(("nsgd", "altmin_gd, ")) else grams
        bound = BOUNDS.get(name, "0.90 to 1.15")
        print(
            f"{name:<28} {ratio:7.2f} {bound:>14} {error / separate:9.2f} {seconds:8.1f} "
            f"{peak / held:7.1f}",
            flush=True,
        )
    print("outliers: error of the other tasks over separate least squares, 4 outlier tasks\n")


def fit(model, sim):
    return model.fit(sim.X, sim.y, task=sim.task)


def transfer(seeds):
    print(f"{'new tasks: rows':<18} {'least squares':>14} {'prior':>8} {'Algorithm 2':>12}")
    for M in (2, 50, 200, 1000):
        risks = dict.fromkeys(("least_squares", "prior", "sgd"), 0.0)
        for seed in seeds:
            source = ss.simulate(
                **{**SIZE, "n_tasks": 200}, condition_number=1.5, random_state=seed
            )
            model = fit(ss.SharedSpanRegressor(rank=3, fit_intercept=False, random_state=0), source)
            rng = np.random.default_rng(1000 + seed)
            picked = rng.integers(0, 200, 100)
            coef = source.coef[picked] * rng.choice([-1, 1], (100, 1))
            task = np.repeat(np.arange(100), M)
            X = rng.standard_normal((len(task), 50))
            y = np.einsum("ij,ij->i", X, coef[task]) + 0.5 * rng.standard_normal(len(task))
            for method in risks:
                new = ss.NewTaskRegressor.from_model(model, method=method).fit(X, y, task=task)
                risks[method] += ss.parameter_error(new.coef_, coef) / 100 / len(seeds)
        print(f"{M:<18} {risks['least_squares']:14.5f} {risks['prior']:8.5f} {risks['sgd']:12.5f}")
    print()


def curriculum(seeds):
    noise = np.repeat([0.1, 0.5, 1.0], 60)
    levels = dict(enumerate(np.repeat([1, 2, 3], 60).tolist()))
    common = {"rank": 3, "fit_intercept": False, "random_state": 0}
    models = {"pooled": lambda: ss.SharedSpanRegressor(**common)}
    for mode in ("freeze", "weighted", "pair", "literal"):
        models[mode] = lambda mode=mode: ss.CurriculumRegressor(
            variant=mode, levels=levels, **common
        )
    for name, make in models.items():
        errors = []
        for seed in seeds:
            sim = ss.simulate(
                **{**SIZE, "n_tasks": 180, "noise": noise}, condition_number=1.5, random_state=seed
            )
            errors.append(ss.parameter_error(fit(make(), sim).coef_, sim.coef))
        print(f"curriculum, {name:<10} total error {np.mean(errors):.3f}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    accuracy(seeds)
    transfer(seeds)
    curriculum(seeds)
