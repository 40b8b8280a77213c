"""Every claim of accuracy, printed with its bound: `python benchmarks/accuracy.py [seeds]`."""

import sys
import warnings
from pathlib import Path

import numpy as np

import sharedspan as ss

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from oracles import exact_als, relative


def fit(sim, **options):
    return ss.SharedSpanRegressor(random_state=0, **options).fit(sim.X, sim.y, task=sim.task)


def ratio(model, sim):
    T, d = sim.coef.shape
    k = sim.representation.shape[1]
    floor = ss.error_floor(sim.n_samples, d, T, k, sim.noise)
    return ss.parameter_error(model.coef_, sim.coef) / floor


def show(name, value, bound):
    print(f"{name:<76} {value:<34} {bound}", flush=True)


def floor_at_four_condition_numbers(seeds):
    for kappa in (1, 1.5, 3, 10):
        given, auto, ranks, gaps = [], [], [], []
        for seed in seeds:
            sim = ss.simulate(
                n_tasks=100, n_features=100, rank=5, n_samples=1000, noise=0.4,
                condition_number=kappa, random_state=seed,
            )  # fmt: skip
            exact = exact_als(sim.X, sim.y, sim.task, 5, start=sim.coef)
            model = fit(sim, rank=5)
            gaps.append(relative(model.coef_, exact))
            given.append(ratio(model, sim))
            model = fit(sim)
            gaps.append(relative(model.coef_, exact))
            auto.append(ratio(model, sim))
            ranks.append(model.rank_)
        name = f"d=100 T=100 k=5 N=1000 sigma=.4 kappa={kappa}"
        show(f"{name}: mean R, rank=5", f"{np.mean(given):.3f}", "0.85 to 1.15")
        show(f"{name}: mean R, rank=auto", f"{np.mean(auto):.3f} ranks {ranks}", "0.85 to 1.15, 5")
        show(f"{name}: largest distance to exact ALS", f"{max(gaps):.1e}", "1e-6")


def ill_conditioned(seeds):
    for kappa in (100, 300):
        outcomes = []
        for seed in seeds:
            sim = ss.simulate(
                n_tasks=60, n_features=40, rank=5, n_samples=200, noise=0.001,
                condition_number=kappa, random_state=seed,
            )  # fmt: skip
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = fit(sim, rank=5)
            outcomes.append(f"{ratio(model, sim):.2f}{'' if model.converged_ else ' (warned)'}")
        show(f"d=40 T=60 k=5 N=200 sigma=.001 kappa={kappa}: R of each seed", ", ".join(outcomes),
             "1.1, or warned")  # fmt: skip


def rank_three(seeds):
    for name in ("n_t = 24", "n_t from 20 to 400"):
        ranks = []
        for seed in seeds:
            sizes = np.random.default_rng(seed).integers(20, 401, 120)
            sim = ss.simulate(
                n_tasks=120, n_features=30, rank=3, n_samples=24 if "24" in name else sizes,
                noise=0.5, random_state=seed,
            )  # fmt: skip
            ranks.append(fit(sim).rank_)
        show(f"d=30 T=120 k=3 {name}: rank=auto finds", f"{ranks}", "3")


def few_rows(seeds):
    ratios = []
    for seed in seeds:
        sim = ss.simulate(
            n_tasks=500, n_features=100, rank=3, n_samples=20, noise=0.5, random_state=seed
        )
        ratios.append(ratio(fit(sim, rank=3, fit_intercept=False), sim))
    show("20 rows in 100 dimensions, T=500 k=3 sigma=.5: mean R (each)",
         f"{np.mean(ratios):.3f} ({', '.join(f'{r:.2f}' for r in ratios)})", "1.35")  # fmt: skip


def all_at_once(seeds):
    ratios = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        sizes, noise = rng.integers(20, 401, 120), rng.uniform(0.1, 2.0, 120)
        sim = ss.simulate(
            n_tasks=120, n_features=30, rank=3, n_samples=sizes, noise=noise,
            feature_condition=100, intercept=1.0, random_state=seed,
        )  # fmt: skip
        oracle = exact_als(sim.X, sim.y, sim.task, 3, weights=noise**-2, start=sim.coef)
        model = fit(sim, rank=3, noise="per_task")
        ratios.append(
            ss.parameter_error(model.coef_, sim.coef) / ss.parameter_error(oracle, sim.coef)
        )
    show("unequal sizes, noise and features: error over ALS with the true noise (each)",
         ", ".join(f"{r:.3f}" for r in ratios), "1.10")  # fmt: skip


if __name__ == "__main__":
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    print(f"{'claim':<76} {'measured':<34} bound")
    for claim in (
        floor_at_four_condition_numbers, ill_conditioned, rank_three, few_rows, all_at_once,
    ):  # fmt: skip
        claim(seeds)
