"""The results page: the paper's numbers beside ours, and a verdict on each claim."""

from __future__ import annotations

import numpy as np

from sharedspan.paper import EXPERIMENTS, experiment_named, table1, table2
from sharedspan.paper.claims import CLAIMS
from sharedspan.paper.drawing import theory_error
from sharedspan.paper.methods import TPGD, WELL_SET
from sharedspan.paper.table import ResultTable, log_slope
from sharedspan.paper.verdicts import CONDITIONAL, Verdict, judge

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
        "same command gives the same tables, except for `seconds.csv`, which holds measured times.",
        "",
        "The paper leaves out d, k, T, the noise and the step sizes of its rivals in most places. "
        "Unless stated otherwise, σ = 0.4, singular values of V* fall geometrically with κ = 1.5, "
        'rows are standard Gaussian and |v_t| is about 1. "Paper\'s steps" are 1.1/(κ⁵σ₁) (at most '
        "0.5/σ₁) for Phase I and GD + Loss 1, 0.1/σ₁ for Phase II, as it states them, and 0.1/σ₁ "
        "for GD + Loss 2 and NSGD, for which it states none; they need the true singular values. "
        '"Well set" steps are 0.5/σ₁ for TPGD and GD + Loss 1, 0.2/σ₁ for GD + Loss 2 and NSGD '
        "(without injected noise), with σ₁ from the data. The floor is σ²k(d+T-k)/(NT), the "
        "error that the best fit of rank k can reach.",
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
    return _header("", "the paper's claim", "verdict") + [
        _row(verdict.claim.letter, verdict.claim.says, _outcome_sentence(verdict))
        for verdict in verdicts
    ]


def _outcome_sentence(verdict: Verdict) -> str:
    """The verdict with its condition or its reason."""
    text = f"**{verdict.outcome}**"
    if verdict.outcome == CONDITIONAL:
        text += f": {verdict.places(True)}. Not: {verdict.places(False)}"
    return f"{text}. {verdict.reason}".rstrip()


def _section(name: str, table: ResultTable, times: ResultTable, verdicts: list[Verdict]) -> Lines:
    experiment = experiment_named(name)
    n_seeds = len(table.values("seed"))
    seeds = "one seed" if n_seeds == 1 else f"{n_seeds} seeds"
    sizes = ", ".join(f"{n} = {_range(table.column(n))}" for n in ("d", "T", "k", "N"))
    about = f"{experiment.__doc__} {sizes}; {seeds}; table: [{name}.csv]({name}.csv)."
    lines = ["", f"## {name}: {experiment.title}", "", f"![{name}]({name}.png)", "",
             f"{about} {experiment.note}".rstrip()]  # fmt: skip
    if name == "table1":
        lines += ["", *_exponents(table), "", *_costs(table, times)]
    if name == "table2":
        lines += ["", *_stabilisation(table)]
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
        f"Rule: {claim.rule}", "",
        *_header("where", "passes", "measured"),
        *(_row(c.place, "yes" if c.passed else "no", c.figures) for c in verdict.checks),
    ]  # fmt: skip


def _exponents(table: ResultTable) -> Lines:
    sizes = table1.EXPECTED
    lines = _header("method", "paper's bound", *(f"power of {size}" for size in sizes),
                    "error over ERM's")  # fmt: skip
    for method, base in table.where(part="N").groups("method"):
        slopes = [str(table.where(part=size, method=method).exponent(size)) for size in sizes]
        ratio = float(np.median(base.column("error") / base.column("erm")))
        lines.append(_row(method, table1.RATES.get(method, ""), *slopes, f"{ratio:.2f}"))
    floors = ", ".join(f"{_floor_slope(table, size):+.2f} in {size}" for size in sizes)
    return [
        "Fitted powers of the error, mean over seeds with a 95 percent interval. The floor itself, "
        f"which grows with d + T - k, has {floors} over these ranges.",
        "",
        *lines,
    ]


def _floor_slope(table: ResultTable, size: str) -> float:
    """The power of a size in the floor, over the range of its sweep."""
    sweep = table.where(part=size, method=TPGD, seed=table.rows[0]["seed"])
    return log_slope(sweep.column(size), np.array([theory_error(row) for row in sweep.rows]))


def _costs(table: ResultTable, times: ResultTable) -> Lines:
    lines = _header("method", "steps", "IC (paper)", "iterations to 1.05 of the floor",
                    "AC (paper)", "decompositions per iteration",
                    "time per iteration over TPGD's")  # fmt: skip
    costs = table.where(part=table1.COST)
    timed = times.where(experiment="table1", part=table1.COST)
    unit = timed.where(method=TPGD, setting=WELL_SET)
    for (method, setting), rows in costs.groups("method", "setting"):
        count = table1.iterations_text(rows.median("iteration"))
        own, ratio = timed.where(method=method, setting=setting), 0.0
        if len(own) and len(unit):
            ratio = own.median("seconds") / unit.median("seconds")
        ic, ac = table1.PAPER_COST.get(method, ("", ""))
        per = f"{rows.median('decompositions'):.0f}"
        lines.append(_row(method, setting, ic, count, ac, per, f"{ratio:.1f}" if ratio else ""))
    for method, (ic, ac) in table1.PAPER_COST.items():
        if method not in costs.values("method"):
            lines.append(f"| {method} | | {ic} | | {ac} | | |")
    row = costs.rows[0]
    return [
        f"Cost of an iteration at d = {row['d']}, T = {row['T']}, k = {row['k']}, N = {row['N']} "
        "(medians). An iteration of ALS solves for B by many inner steps, and the "
        "first one suffices. Decompositions are counted when NumPy is called.",
        "",
        *lines,
    ]


def _stabilisation(table: ResultTable) -> Lines:
    tasks = sorted(table.values("T"))
    lines = _header("method", "", *(f"T = {T}" for T in tasks))
    for method, printed in table2.PAPER_NUMBERS.items():
        pairs = [printed[table2.TASKS.index(T)] for T in tasks]
        lines.append(_row(method, "paper", *(f"{count}: {loss}" for count, loss in pairs)))
        for setting in (table2.STOPPED, table2.SMALL, WELL_SET):
            runs = table.where(method=method, setting=setting).groups("T")
            texts = [f"{rows.column('iteration').mean():.0f}: {rows.column('error').mean() * T:.3f}"
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
