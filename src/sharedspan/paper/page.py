"""The results page: the paper's numbers beside ours, and a verdict on each claim."""

from __future__ import annotations

import math

import numpy as np

from sharedspan.paper import EXPERIMENTS, drawing, table1, table2
from sharedspan.paper.claims import (
    CONDITIONAL,
    HOLDS,
    Verdict,
    iterations_text,
    median_over_seeds,
    verdicts,
)
from sharedspan.paper.exponents import exponent
from sharedspan.paper.problem import WELL_SET
from sharedspan.paper.runner import experiment
from sharedspan.paper.table import Table

Lines = list[str]


def results_page(tables: dict[str, Table], times: Table, command: str) -> str:
    """Markdown, from the tables alone."""
    found = verdicts(tables)
    rows = next(table for table in tables.values() if len(table)).rows
    lines = [
        "# The paper, reproduced",
        "",
        'Ding, Du and Fang (2026), "Near-optimal and efficient first-order algorithm for '
        'multi-task learning with shared linear representation". Every number, figure and verdict '
        "here is computed from the tables beside this page.",
        "",
        f"Made by `{command}` with sharedspan {rows[0]['version']} on {rows[0]['machine']}. The "
        "same command gives the same tables; `seconds.csv`, what the clock said, is kept apart.",
        "",
        "The paper leaves out d, k, T, the noise and the step sizes of its rivals in most places. "
        "Where nothing else is said: σ = 0.4, singular values of V* falling geometrically with "
        'κ = 1.5, rows standard Gaussian, |v_t| about 1. "Paper\'s steps" are 1.1/(κ⁵σ₁) (at most '
        "0.5/σ₁) for Phase I and GD + Loss 1, 0.1/σ₁ for Phase II, as it states them, and 0.1/σ₁ "
        "for GD + Loss 2 and NSGD, for which it states none; they need the true singular values. "
        '"Well set" steps are 0.5/σ₁ for TPGD and GD + Loss 1, 0.2/σ₁ for GD + Loss 2 and NSGD '
        "(without injected noise), with σ₁ from the data. The floor is σ²k(d+T-k)/(NT), what the "
        "best fit of rank k can reach.",
        "",
        "## Verdicts",
        "",
        *_summary(found),
    ]
    for name in EXPERIMENTS:
        if name in tables and len(tables[name]):
            lines += _section(name, tables[name], times, found)
    return "\n".join(lines) + "\n"


def _summary(found: list[Verdict]) -> Lines:
    lines = _header("", "the paper's claim", "verdict")
    for verdict in found:
        claim = verdict.claim
        lines.append(f"| {claim.letter} | {claim.says} | {sentence(verdict)} |")
    return lines


def sentence(verdict: Verdict) -> str:
    """The verdict with its condition or its reason."""
    text = f"**{verdict.outcome}**"
    if verdict.outcome == CONDITIONAL:
        text += f": {verdict.places(True)}. Not: {verdict.places(False)}"
    return f"{text}. {verdict.reason}".removesuffix(". ") + ("" if verdict.reason else ".")


def _section(name: str, table: Table, times: Table, found: list[Verdict]) -> Lines:
    lines = ["", f"## {name}: {experiment(name).TITLE}", "", f"![{name}]({name}.png)", ""]
    n_seeds = len(table.values("seed"))
    seeds = "one seed" if n_seeds == 1 else f"{n_seeds} seeds"
    sizes = ", ".join(f"{n} = {_range(table.column(n))}" for n in ("d", "T", "k", "N"))
    note = getattr(experiment(name), "NOTE", "")
    about = f"{experiment(name).__doc__ or ''} {sizes}; {seeds}; table: [{name}.csv]({name}.csv)."
    lines += [f"{about} {note}".rstrip(), ""]
    if name == table1.NAME:
        lines += [*_exponents(table), "", *_costs(table, times), ""]
    if name == table2.NAME:
        lines += [*_stabilisation(table), ""]
    for verdict in found:
        if verdict.claim.experiment == name:
            lines += _claim(verdict)
    return lines[:-1] if lines[-1] == "" else lines


def _range(values: np.ndarray) -> str:
    low, high = values.min(), values.max()
    return f"{low}" if low == high else f"{low} to {high}"


def _claim(verdict: Verdict) -> Lines:
    claim = verdict.claim
    lines = [f"### ({claim.letter}) {claim.says}", "", f"**{verdict.outcome}**. {verdict.reason}",
             "", f"Rule: {claim.rule}", "", *_header("where", "passes", "measured")]  # fmt: skip
    lines += [
        f"| {c.place} | {'yes' if c.passed else 'no'} | {c.figures} |" for c in verdict.checks
    ]
    return [line.rstrip() for line in lines] + [""]


def _header(*names: str) -> Lines:
    return ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]


def _exponents(table: Table) -> Lines:
    lines = _header("method", "paper's bound", *(f"power of {size}" for size in table1.SWEEPS),
                    "error over ERM's")  # fmt: skip
    for method in table.where(part="N").values("method"):
        slopes = [
            str(exponent(table.where(part=size, method=method), size)) for size in table1.SWEEPS
        ]
        base = table.where(part="N", method=method)
        ratio = float(np.median(base.column("error") / base.column("erm")))
        bound = table1.RATES.get(method, "")
        lines.append(f"| {method} | {bound} | {' | '.join(slopes)} | {ratio:.2f} |")
    floors = ", ".join(f"{_floor_slope(table, size):+.2f} in {size}" for size in table1.SWEEPS)
    return [
        "Fitted powers of the error, mean over seeds with a 95 percent interval. The floor itself, "
        f"which grows with d + T - k, has {floors} over these ranges.",
        "",
        *lines,
    ]


def _floor_slope(table: Table, size: str) -> float:
    """The power of a size in the floor, over the range of its sweep."""
    here = table.where(part=size, method="TPGD", seed=table.rows[0]["seed"])
    floors = [drawing.theory(Table([row])) for row in here.rows]
    return float(np.polyfit(np.log(here.column(size).astype(float)), np.log(floors), 1)[0])


def _costs(table: Table, times: Table) -> Lines:
    lines = _header("method", "steps", "IC (paper)", "iterations to 1.05 of the floor",
                    "AC (paper)", "decompositions per iteration",
                    "time per iteration over TPGD's")  # fmt: skip
    cost = table.where(part=table1.COST)
    timed = times.where(experiment=table1.NAME, part=table1.COST)
    unit = timed.where(method="TPGD", setting=WELL_SET)
    for (method, setting), here in cost.groups("method", "setting"):
        count = iterations_text(median_over_seeds(here, "iteration"))
        seconds = timed.where(method=method, setting=setting).column("seconds").astype(float)
        ratio = math.nan
        if len(seconds) and len(unit):
            ratio = float(np.median(seconds) / np.median(unit.column("seconds")))
        per = float(np.median(here.column("decompositions")))
        ic, ac = table1.PAPER_COST.get(method, ("", ""))
        clock = "" if math.isnan(ratio) or ratio == 0 else f"{ratio:.1f}"
        lines.append(f"| {method} | {setting} | {ic} | {count} | {ac} | {per:.0f} | {clock} |")
    for method, (ic, ac) in table1.PAPER_COST.items():
        if method not in cost.values("method"):
            lines.append(f"| {method} | | {ic} | | {ac} | | |")
    row = cost.rows[0]
    return [
        f"Cost of an iteration at d = {row['d']}, T = {row['T']}, k = {row['k']}, N = {row['N']} "
        "(medians). An iteration of ALS solves for B by many inner steps, and arrives with its "
        "first. Decompositions are counted as they are called.",
        "",
        *lines,
    ]


def _stabilisation(table: Table) -> Lines:
    tasks = sorted(table.values("T"))
    lines = _header("method", "", *(f"T = {T}" for T in tasks))
    for method, printed in table2.PAPER_NUMBERS.items():
        cells = [printed[table2.TASKS.index(T)] for T in tasks]
        lines.append(f"| {method} | paper | " + " | ".join(f"{i}: {e}" for i, e in cells) + " |")
        for setting in (table2.STOPPED, table2.SMALL, WELL_SET):
            if table2.source_of(method, setting) != setting:
                continue
            texts = []
            for T in tasks:
                here = table.where(method=method, setting=setting, T=T)
                count = np.mean(here.column("iteration"))
                texts.append(f"{count:.0f}: {np.mean(here.column('error')) * T:.3f}")
            lines.append(f"| | {setting} | " + " | ".join(texts) + " |")
    own = table.where(method="TPGD", setting=WELL_SET)
    floors = [
        table2.K * own.rows[0]["noise"] ** 2 * (table2.D + T - table2.K) / table2.N for T in tasks
    ]
    lines.append("| kσ²(d+T-k)/N | | " + " | ".join(f"{floor:.3f}" for floor in floors) + " |")
    return [
        "Iterations: total error at stabilisation, means over seeds. A run has stabilised when its "
        f"training loss falls by less than {table2.SHARE:g} of itself in {table2.WINDOW} "
        f"iterations, at most {table2.CAP}.",
        "",
        *lines,
    ]


def terminal_rows(found: list[Verdict]) -> list[tuple[str, str, str]]:
    """Letter, claim and verdict, short enough for a terminal."""
    rows = []
    for verdict in found:
        passed = sum(check.passed for check in verdict.checks)
        text = verdict.outcome
        if verdict.outcome != HOLDS:
            text += f" ({passed} of {len(verdict.checks)} checks)"
        rows.append((verdict.claim.letter, verdict.claim.says, text))
    return rows
