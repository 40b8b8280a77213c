"""Simulations of yes/no answers and counts: ranks, variances, intervals and cost.

    python benchmarks/families.py rank        # rank 2, D = 0: rank found, excess log loss, errors
    python benchmarks/families.py variance    # estimates over truth, 5, 20 and 100 rows per task
    python benchmarks/families.py coverage    # 95 % intervals of probabilities and means
    python benchmarks/families.py cost        # a turn over a gather, a binary over a Gaussian fit

`rank` also fits GPBoost's random slopes where the package is installed. Times are ratios within one
run, of fits that take turns.
"""

import argparse
import time
import warnings

import numpy as np

import sharedspan as ss
from sharedspan.families import FAMILIES

LOGIT = FAMILIES["binomial"]


def drawn(rng, probability):
    return rng.random(probability.shape) < probability


# ---- rank ----------------------------------------------------------------------------------------


def rank_two(seed, T=200, d=20, n=40, k=2, size=1.5):
    """Rows to fit and as many to predict; v_t = B w_t of root mean square length ``size``."""
    rng = np.random.default_rng(seed)
    B = np.linalg.qr(rng.standard_normal((d, k)))[0]
    V = rng.standard_normal((T, k)) * size / np.sqrt(k) @ B.T
    X = rng.standard_normal((2, T * n, d))
    task = np.repeat(np.arange(T), n)
    p = LOGIT.mean(np.einsum("sij,ij->si", X, V[task]))
    return X, drawn(rng, p), task, p, B, V


def known_span(X, y, task, B, size=1.5):
    """Posterior means and covariances of w_t by an oracle that knows B and the prior of w_t."""
    k, Z = B.shape[1], X @ B
    prior = np.eye(k) * k / size**2
    W, S = [], []
    for t in range(task.max() + 1):
        z, own, w = Z[task == t], y[task == t], np.zeros(k)
        for _ in range(30):
            p = LOGIT.mean(z @ w)
            H = (z * (p * (1 - p))[:, None]).T @ z + prior
            w = w + np.linalg.solve(H, z.T @ (own - p) - prior @ w)
        W.append(w)
        S.append(np.linalg.inv(H))
    return np.array(W), np.array(S)


def log_loss(y, p):
    p = np.clip(p, 1e-9, 1 - 1e-9)
    return -np.mean(np.log(np.where(y, p, 1 - p)))


def gpboost_slopes(X, y, task, X_new):
    import gpboost

    design = np.column_stack([np.ones(len(X)), X])
    model = gpboost.GPModel(
        group_data=task, group_rand_coef_data=X, ind_effect_group_rand_coef=[1] * X.shape[1],
        likelihood="bernoulli_logit",
    )  # fmt: skip
    model.fit(y=y.astype(float), X=design)
    return model.predict(
        group_data_pred=task, group_rand_coef_data_pred=X_new,
        X_pred=np.column_stack([np.ones(len(X_new)), X_new]), predict_response=True,
    )["mu"]  # fmt: skip


def rank(sets):
    ranks, losses, errors = [], [], []
    try:
        import gpboost  # noqa: F401
    except ImportError:
        rivals = 0
    else:
        rivals = min(sets, 5)
    for seed in range(sets):
        (X, X_new), (y, y_new), task, (_, p_new), B, V = rank_two(seed)
        free = ss.AdaptiveSpanClassifier().fit(X, y, task=task)
        hard = ss.SharedSpanClassifier(rank=2).fit(X, y, task=task)
        W, S = known_span(X, y, task, B)
        Z = X_new @ B
        variance = np.einsum("ij,ijk,ik->i", Z, S[task], Z)
        oracle = LOGIT.expected_mean(np.einsum("ij,ij->i", Z, W[task]), variance)
        predicted = [free.predict_proba(X_new, task)[:, 1], hard.predict_proba(X_new, task)[:, 1],
                     oracle, p_new]  # fmt: skip
        predicted.append(
            gpboost_slopes(X, y, task, X_new) if seed < rivals else np.full(len(y), np.nan)
        )
        ranks.append(free.rank_)
        losses.append([log_loss(y_new, p) for p in predicted])
        errors.append([np.linalg.norm(each - V) for each in (free.coef_, hard.coef_, W @ B.T)])
    losses, errors = np.array(losses), np.array(errors)
    print("rank found in", sum(r == 2 for r in ranks), "of", sets)
    print("log loss: adaptive, hard span, known span, truth, GPBoost",
          np.nanmean(losses, axis=0).round(4))  # fmt: skip
    some = losses[:rivals]
    if rivals:
        for name, column in (("known span", 2), ("truth", 3)):
            ours, theirs = some[:, 0] - some[:, column], some[:, 4] - some[:, column]
            print(f"excess over the {name}: {ours.mean():.4f}, GPBoost {theirs.mean():.4f}, "
                  f"ratio {ours.mean() / theirs.mean():.3f} ({rivals} sets)")  # fmt: skip
    print("error of coefficients over that of the known span: adaptive, hard span",
          (errors[:, :2] / errors[:, 2:]).mean(axis=0).round(3))  # fmt: skip


# ---- variances -----------------------------------------------------------------------------------


def two_effects(seed, n, T=200):
    rng = np.random.default_rng(seed)
    X, task = rng.standard_normal((T * n, 1)), np.repeat(np.arange(T), n)
    u = rng.standard_normal((T, 2)) * np.sqrt([1, 0.5])
    eta = 0.3 + u[task, 0] + (0.5 + u[task, 1]) * X[:, 0]
    return X, drawn(rng, LOGIT.mean(eta)), task


def variance(sets):
    for n in (5, 20, 100):
        for method in ("ml", "evidence"):
            ratios = []
            for seed in range(sets):
                X, y, task = two_effects(seed, n)
                model = ss.AdaptiveSpanClassifier(slopes="diagonal", rank=0, method=method)
                model.fit(X, y, task=task)
                ratios.append([model.intercept_std_**2, model.slope_std_[0] ** 2 / 0.5])
            mean, error = np.mean(ratios, axis=0), np.std(ratios, axis=0) / np.sqrt(sets)
            print(f"n = {n}, {method}, {model.approximation_}: intercept and slope "
                  f"{mean.round(3)}, errors {error.round(3)}", flush=True)  # fmt: skip


# ---- intervals -----------------------------------------------------------------------------------


def effects(rng, kind, T, d):
    if kind == "rank 2":
        B = np.linalg.qr(rng.standard_normal((d, 2)))[0]
        return rng.standard_normal((T, 2)) @ B.T
    return rng.standard_normal((T, d)) * np.where(np.arange(d) < 2, 0.5, 0.0)


def coverage(sets, T=200, n=40, d=6):
    for kind in ("two slopes", "rank 2"):
        for name in ("binomial", "poisson", "negative_binomial"):
            shares = []
            for seed in range(sets):
                rng = np.random.default_rng(seed)
                V = effects(rng, kind, T, d) * (1.0 if name == "binomial" else 0.5)
                level = 0.5 * rng.standard_normal(T)
                X, task = rng.standard_normal((T * n, d)), np.repeat(np.arange(T), n)
                X_new = rng.standard_normal((T * 5, d))
                new = np.repeat(np.arange(T), 5)
                eta = level[task] + np.einsum("ij,ij->i", X, V[task])
                mean = FAMILIES[name].mean(level[new] + np.einsum("ij,ij->i", X_new, V[new]))
                if name == "binomial":
                    model = ss.AdaptiveSpanClassifier().fit(
                        X, drawn(rng, LOGIT.mean(eta)), task=task
                    )
                    low, high = model.proba_interval(X_new, new)
                else:
                    rate = np.exp(eta)
                    if name == "negative_binomial":
                        rate = rate * rng.gamma(2.0, 0.5, len(rate))
                    model = ss.AdaptiveSpanRegressor(family=name)
                    model.fit(X, rng.poisson(rate).astype(float), task=task)
                    low, high = model.mean_interval(X_new, new)
                shares.append(np.mean((low <= mean) & (mean <= high)))
            error = np.std(shares) / np.sqrt(sets)
            print(f"{kind}, {name}: {np.mean(shares):.4f} ({error:.4f}); last fit "
                  f"{model.slopes_} + {model.rank_}", flush=True)  # fmt: skip


# ---- cost ----------------------------------------------------------------------------------------


def cost(sets, T=100_000, n=60, d=30):
    from sharedspan.inputs.rows import validate_rows
    from sharedspan.mixed_model.modes import FamilyRows
    from sharedspan.statistics.task_statistics import gather

    rng = np.random.default_rng(0)
    B = np.linalg.qr(rng.standard_normal((d, 2)))[0]
    V = rng.standard_normal((T, 2)) @ B.T + 0.06 * rng.standard_normal((T, d))
    X, task = rng.standard_normal((T * n, d)), np.repeat(np.arange(T), n)
    eta = np.einsum("ij,ij->i", X, V[task])
    y, numbers = drawn(rng, LOGIT.mean(eta)).astype(float), eta + rng.standard_normal(T * n)
    few = slice(0, 60 * n)
    ss.AdaptiveSpanRegressor().fit(X[few], numbers[few], task=task[few])  # compiles
    ss.AdaptiveSpanClassifier().fit(X[few], y[few], task=task[few])
    turns, turn = [], FamilyRows.turn

    def timed(self, *given, **options):
        begin = time.perf_counter()
        result = turn(self, *given, **options)
        if self.n_tasks == T:
            turns.append(time.perf_counter() - begin)
        return result

    FamilyRows.turn = timed
    for _ in range(min(sets, 3)):
        begin = time.perf_counter()
        gather(validate_rows(X, numbers, task), True)
        gathered = time.perf_counter()
        gaussian = ss.AdaptiveSpanRegressor().fit(X, numbers, task=task)
        middle = time.perf_counter()
        turns.clear()
        binary = ss.AdaptiveSpanClassifier().fit(X, y, task=task)
        end = time.perf_counter()
        gather_time = gathered - begin
        print(f"gather {gather_time:.2f} s, turns over it {np.array(turns) / gather_time}; "
              f"Gaussian {middle - gathered:.1f} s ({gaussian.slopes_} + {gaussian.rank_}), binary "
              f"{end - middle:.1f} s ({binary.slopes_} + {binary.rank_}), ratio "
              f"{(end - middle) / (middle - gathered):.2f}", flush=True)  # fmt: skip


COMMANDS = {"rank": (rank, 50), "variance": (variance, 100), "coverage": (coverage, 10),
            "cost": (cost, 2)}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--sets", type=int, help="simulated data sets")
    parser.add_argument("--tasks", type=int, help="of `cost`")
    options = parser.parse_args()
    function, sets = COMMANDS[options.command]
    warnings.simplefilter("ignore")
    more = {} if options.tasks is None else {"T": options.tasks}
    np.set_printoptions(precision=2, suppress=True)
    function(options.sets or sets, **more)


if __name__ == "__main__":
    main()
