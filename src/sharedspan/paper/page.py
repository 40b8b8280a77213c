"""The results page: the paper's numbers beside ours, and a verdict on each claim."""

from __future__ import annotations

import numpy as np

from sharedspan.paper import EXPERIMENTS, crossover, experiment_named, table1, table2, theory
from sharedspan.paper.claims import CLAIMS
from sharedspan.paper.drawing import floor_error
from sharedspan.paper.experiment import KAPPAS, kappa_text
from sharedspan.paper.methods import LOSS_1, TPGD, WELL_SET
from sharedspan.paper.table import ResultTable, log_slope, spread
from sharedspan.paper.verdicts import CONDITIONAL, Check, Verdict, judge

Lines = list[str]


def results_page(tables: dict[str, ResultTable], times: ResultTable, command: str) -> str:
    """The page in Markdown, computed from the tables alone."""
    verdicts = judge(CLAIMS, tables)
    rows = next(table for table in tables.values() if len(table)).rows
    lines = [
        "# The paper, reproduced",
        "",
        'Ding, Du and Fang (2026), "Near-optimal and efficient first-order algorithm for '
        'multi-task learning with shared linear representation". Every number, figure and verdict '
        "here is computed from the tables beside this page.",
        "",
        f"Made by `{command}` with sharedspan {rows[0]['version']} on {rows[0]['machine']}. The "
        "same command gives the same tables, except for `seconds.csv`, which holds measured times. "
        "`--quick` has fewer seeds, sizes and budgets than `--full`: near the limits of a rule, "
        "such as at κ close to a crossover, its verdict can differ.",
        "",
        "The paper leaves out d, k, T, κ, K₁, the noise and the step sizes of its rivals in most "
        "places. Unless stated otherwise, σ = 0.4, singular values of V* fall geometrically with "
        "κ = 1.5, rows are standard Gaussian and |v_t| is about 1. Gaussian factors are B* and W* "
        "with independent standard normal entries, whose κ varies from draw to draw. "
        '"Paper\'s steps" are 1.1/(κ⁵σ₁) (at most 0.5/σ₁) for Phase I and GD + Loss 1, 0.1/σ₁ for '
        "Phase II, as it states them, and 0.1/σ₁, our choice, for GD + Loss 2 and NSGD, for which "
        "it refers to their publications; they need the true singular values. "
        '"Well set" steps are 0.5/σ₁ for TPGD and GD + Loss 1, 0.2/σ₁ for GD + Loss 2 and NSGD '
        "(without injected noise), with σ₁ from the data. As with all our solvers, a step under "
        "which the loss rises is halved. The floor is σ²k(d+T-k)/(NT), "
        "the error that the best fit of rank k approaches as rows grow.",
        "",
        "Some things are our readings, since the paper and its references leave them open. NSGD "
        "draws 16 rows of every task in each iteration and injects noise of size 0.1 σ₁^½ in the "
        "first half of them. GD + SVD is gradient descent on V, cut to rank k by an SVD in every "
        "iteration (singular value projection). A tail average is the mean of BW over the last "
        "half of the iterations so far; the paper's text says that rivals are averaged, its "
        "captions say last iterate. AltMinGD uses all rows in both of its steps, though its "
        "guarantee needs a split, and starts at random. ARMUL has C = 1.2, pERM C₁ = C₂ = 1 and SE "
        "C₂ = 1, in units of the estimated noise; the nuclear norm is told σ. MoM (Niu) is read "
        "from its abstract: the left singular vectors. GD + Loss 2 has the weights of this paper; "
        "LF-FO is the likelihood fit that Tripuraneni et al. published.",
        "",
        "A claim is an upper bound, an order of growth or superiority over other methods, and each "
        "kind has a rule of its own. A bound holds if the measured errors grow no faster; that "
        "they grow more slowly is no objection. Superiority is judged seed by seed on the same "
        "rows: ratios are geometric means with a 95 percent interval; it must exclude 1, or all of "
        "at least five pairs must agree, and differences below 2 percent do not count. Methods are "
        "equal if the interval lies within 5 percent of 1, and otherwise it is undecided. What "
        "lies outside the hypotheses of a theorem is shown with the reason in brackets, and does "
        "not count for the verdict. What critical readers objected to, and what became of it, is "
        "in [readings](readings.md).",
        "",
        "## Verdicts",
        "",
        *_summary(verdicts),
    ]
    for name in EXPERIMENTS:
        if name in tables and len(tables[name]):
            lines += _section(name, tables[name], times, verdicts)
    return "\n".join(lines) + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _header(*names: str) -> Lines:
    return [_row(*names), "|" + "---|" * len(names)]


def _summary(verdicts: list[Verdict]) -> Lines:
    return _header("", "the paper's claim", "kind", "verdict") + [
        _row(verdict.claim.letter, verdict.claim.says, verdict.claim.kind, _outcome(verdict))
        for verdict in verdicts
    ]


def _outcome(verdict: Verdict) -> str:
    """The verdict with its condition."""
    text = f"**{verdict.outcome}**"
    if verdict.outcome == CONDITIONAL:
        text += f": {verdict.places(True)}. Otherwise {verdict.otherwise}"
    return f"{text}."


def _section(name: str, table: ResultTable, times: ResultTable, verdicts: list[Verdict]) -> Lines:
    experiment = experiment_named(name)
    counts = [len(rows.values("seed")) for _, rows in table.groups("part")]
    seeds = f"{_range(np.array(counts))} seeds" if max(counts) > 1 else "one seed"
    sizes = ", ".join(f"{n} = {_range(table.column(n))}" for n in ("d", "T", "k", "N"))
    about = f"{experiment.__doc__} {sizes}; {seeds}; table: [{name}.csv]({name}.csv)."
    lines = ["", f"## {name}: {experiment.title}", "", f"![{name}]({name}.png)", "",
             f"{about} {experiment.note}".rstrip()]  # fmt: skip
    if name == "table1":
        lines += ["", *_exponents(table), "", *_costs(table, times)]
    if name == "table2":
        lines += ["", *_stabilisation(table)]
    if name == "crossover":
        lines += ["", *_iterations(table)]
    if name == "theory":
        lines += ["", *_far_starts(table)]
    for verdict in verdicts:
        if verdict.claim.experiment == name:
            lines += ["", *_claim(verdict)]
    return lines


def _range(values: np.ndarray) -> str:
    low, high = values.min(), values.max()
    return f"{low}" if low == high else f"{low} to {high}"


def _claim(verdict: Verdict) -> Lines:
    claim = verdict.claim
    return [
        f"### ({claim.letter}) {claim.says}", "",
        f"**{verdict.outcome}**. {verdict.reason}".rstrip(), "",
        f"Kind: {claim.kind}. Hypotheses: {claim.hypotheses}", "",
        f"Rule: {claim.rule}", "",
        *_checks(verdict.checks),
    ]  # fmt: skip


def _checks(checks: list[Check]) -> Lines:
    """A column for each second name, such as κ, if every pair of names occurs at most once."""
    columns = list(dict.fromkeys(check.within for check in checks))
    rows = list(dict.fromkeys(check.where for check in checks))
    cells = {(c.where, c.within): f"{c.word}: {c.figures}" for c in checks}
    if len(cells) < len(checks) or not all(columns) or len(rows) < 2 or len(columns) > 8:
        lines = [_row(check.place, check.word, check.figures) for check in checks]
        return _header("where", "passes", "measured") + lines
    return _header("where", *columns) + [
        _row(where, *(cells.get((where, column), "") for column in columns)) for where in rows
    ]


def _exponents(table: ResultTable) -> Lines:
    sizes = table1.EXPECTED
    lines = _header("method", "paper's bound", *(f"power of {size}" for size in sizes),
                    "error over ERM's", "error over the floor")  # fmt: skip
    for method in table.where(part="N").values("method"):
        sweeps = {size: table.where(part=size, method=method) for size in sizes}
        slopes = [str(rows.exponent(size)) for size, rows in sweeps.items()]
        ratios = [
            spread(np.array([np.median(at.column("error") / at.column(column))
                             for size, rows in sweeps.items() for _, at in rows.groups(size)]))
            for column in ("erm", "predicted")
        ]  # fmt: skip
        lines.append(_row(method, table1.RATES.get(method, ""), *slopes, *ratios))
    floors = ", ".join(f"{_floor_slope(table, size):+.2f} in {size}" for size in sizes)
    return [
        "Fitted powers of the error, mean over seeds with a 95 percent interval, and ranges of the "
        "medians over all sizes. The floor itself, which grows with d + T - k, has "
        f"{floors} over these ranges. SE and separate fits contain least squares, whose error has "
        "a factor of N/(N-d-1). NSGD is the tail average of a run that is cut off, without "
        "injected noise; the other solvers run until they have converged.",
        "",
        *lines,
    ]


def _floor_slope(table: ResultTable, size: str) -> float:
    """The power of a size in the floor, over the range of its sweep."""
    sweep = table.where(part=size, method=TPGD, seed=table.rows[0]["seed"])
    return log_slope(sweep.column(size), np.array([floor_error(row) for row in sweep.rows]))


def _costs(table: ResultTable, times: ResultTable) -> Lines:
    lines = _header("method", "steps", "IC (paper)", "iterations to 1.05 of ERM's error",
                    "by the tail average", "AC (paper)", "decompositions per iteration",
                    "time per iteration over TPGD's", "time in all over TPGD's")  # fmt: skip
    costs = table.where(part=table1.COST)
    timed = times.where(experiment="table1", part=table1.COST)
    unit = timed.where(method=TPGD, setting=WELL_SET)
    needed = costs.where(method=TPGD, setting=WELL_SET).median("iteration")
    for (method, setting), rows in costs.groups("method", "setting"):
        counts = [table1.iterations_text(rows.median(m)) for m in ("iteration", "averaged")]
        own, ratio = timed.where(method=method, setting=setting), 0.0
        if len(own) and len(unit):
            ratio = own.median("seconds") / unit.median("seconds")
        ic, ac = table1.PAPER_COST.get(method, ("", ""))
        per, total = (
            f"{rows.median('decompositions'):.0f}",
            ratio * rows.median("iteration") / needed,
        )
        shown = [f"{value:.1f}" if 0 < value < np.inf else "" for value in (ratio, total)]
        lines.append(_row(method, setting, ic, *counts, ac, per, *shown))
    for method, (ic, ac) in table1.PAPER_COST.items():
        if method not in costs.values("method"):
            lines.append(f"| {method} | | {ic} | | | {ac} | | | |")
    row = costs.rows[0]
    return [
        f"Cost of an iteration at d = {row['d']}, T = {row['T']}, k = {row['k']}, N = {row['N']} "
        "(medians). An iteration of ALS solves for B by many inner steps, and one is enough, from "
        "a start by k passes that are not counted. Decompositions are counted when NumPy is "
        "called; one of the two of AltMinGD is our k x k solve for W. "
        f"{_same_counts(costs)}",
        "",
        *lines,
    ]


def _same_counts(costs: ResultTable) -> str:
    """In how many runs TPGD arrives while it is still GD on Loss 1."""
    own, other = (costs.where(method=method) for method in (TPGD, LOSS_1))
    same = sum(int(a["iteration"] == b["iteration"])
               for a, b in zip(own.rows, other.rows, strict=True))  # fmt: skip
    return f"In {same} of {len(own)} runs TPGD needs as many iterations as {LOSS_1}."


def _iterations(table: ResultTable) -> Lines:
    """Iterations by method and κ, last iterate and tail average."""
    kappas = [kappa for kappa in KAPPAS if kappa in table.values("kappa")]
    lines = _header("method", "steps", *map(kappa_text, kappas))
    for (method, setting), rows in table.groups("method", "setting"):
        texts = [
            " / ".join(crossover.count_text(rows.where(kappa=kappa), m, method)
                       for m in ("iteration", "averaged"))
            for kappa in kappas
        ]  # fmt: skip
        lines.append(_row(method, setting, *texts))
    return ["Iterations by the last iterate / by the tail average, medians over seeds.", "", *lines]


def _far_starts(table: ResultTable) -> Lines:
    """Every run of Phase I that ended too far from the truth."""
    failed = theory.far_starts(table)
    if not failed:
        return ["Every run of Phase I ended within (2σ_k)^½/8 of the truth."]
    names = ("κ", "N", "steps", "start over σ₁^½", "seed", "iterations", "distance over σ_k^½",
             "that of the minimiser", "hypotheses")  # fmt: skip
    lines = [
        _row(f"{row['kappa']:g}" if row["kappa"] else "Gaussian", f"{row['N']}", row["setting"],
             f"{row['rate']:g}" if row["rate"] else "theorem", f"{row['seed']}",
             f"{row['iteration']}", f"{row['distance']:.3f}", f"{row['erm']:.3f}",
             theory.outside(row) or "met")
        for row in failed
    ]  # fmt: skip
    return [
        "Runs of Phase I that ended farther than (2σ_k)^½/8, 0.177 of σ_k^½:",
        "",
        *_header(*names),
        *lines,
    ]


def _stable_count(rows: ResultTable) -> str:
    count = float(rows.column("iteration").mean())
    return f"over {count:.0f}" if count >= table2.LAST_ITERATION else f"{count:.0f}"


def _stabilisation(table: ResultTable) -> Lines:
    tasks = sorted(table.values("T"))
    lines = _header("method", "", *(f"T = {T}" for T in tasks))
    for method, printed in table2.PAPER_NUMBERS.items():
        pairs = [printed[table2.TASKS.index(T)] for T in tasks]
        lines.append(_row(method, "paper", *(f"{count}: {loss}" for count, loss in pairs)))
        for setting in (table2.STOPPED, table2.SMALL, WELL_SET):
            runs = table.where(method=method, setting=setting).groups("T")
            texts = [f"{_stable_count(rows)}: {rows.column('error').mean() * T:.3f}"
                     for T, rows in runs]  # fmt: skip
            if texts:
                lines.append(f"| {_row(setting, *texts)}")
    floors = _row(*(f"{table2.total_floor(T):.3f}" for T in tasks))
    return [
        "Iterations: total error at stabilisation, means over seeds. A run has stabilised when its "
        f"training loss falls by less than {table2.SHARE:g} of itself in {table2.WINDOW} "
        f"iterations, at most {table2.LAST_ITERATION}.",
        "",
        *lines,
        f"| kσ²(d+T-k)/N | {floors}",
    ]
