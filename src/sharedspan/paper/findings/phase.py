"""Where TPGD succeeds: over rows and rank, and over the condition number and the start."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from sharedspan.diagnosis.text import listed
from sharedspan.paper.drawing import DASHED
from sharedspan.paper.experiment import Cell
from sharedspan.paper.findings.finding import TPGD_WELL_SET, Finding, over_floor, run_until_settled
from sharedspan.paper.methods import TPGD, WELL_SET, Method
from sharedspan.paper.problem import SimulatedProblem
from sharedspan.paper.table import ResultRow, ResultTable, log_slope, spread
from sharedspan.report.figures import blank_figure

ROWS, START = "rows and rank", "condition number and start"
SEARCH, TRUTH = "several starts", "started at the truth"
SUCCESS = 1.5  # times the floor
RELIABLE = 0.9  # share of seeds
CAP = 20_000
RATIOS = (0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)  # N / d
STARTS = (30.0, 10.0, 3.0, 1.0, 1e-1, 1e-2, 1e-4, 1e-7, 1e-10)  # alpha-tilde over sqrt(s_1)


class PhaseDiagram(Finding):
    """The maps show the share of seeds whose error ends at no more than 1.5 times the floor.

    TPGD takes well-set steps and runs until it has converged. It is compared with a solver that
    tries several starts, and with one that starts at the truth, which shows what is achievable with
    these rows. The maps of rows and rank have σ = 0.1 and κ = 1.5; the map of κ and the size of the
    start has σ = 0.01.
    """

    name, title = "phase", "how many rows, and how small a start?"
    n_seeds, pace = (4, 50), (0.4, 0.0)

    def cells(self, full: bool, seeds: Sequence[int]) -> list[Cell]:
        """Rows down to a tenth of the features; starts from tiny to larger than the truth."""
        d = T = 40
        ranks, ratios = ((1, 2, 3, 4, 6, 8), RATIOS) if full else ((1, 2, 4, 8), RATIOS[3::2])
        kappas = (1.0, 2.0, 5.0, 10.0, 30.0, 100.0) if full else (1.0, 10.0, 100.0)
        return [
            *(Cell(self.name, ROWS, d, T, k, round(r * d), seed, noise=0.1)
              for seed in seeds for k in ranks for r in ratios),
            *(Cell(self.name, START, d, T, 4, 4 * d, seed, noise=0.01, kappa=kappa)
              for seed in seeds[: 10 if full else 2] for kappa in kappas),
        ]  # fmt: skip

    def run(self, cell: Cell) -> Iterator[ResultRow]:
        problem = SimulatedProblem(cell)
        sim = problem.sim
        truth = {"warm_start": (sim.representation, sim.task_weights)}
        root = math.sqrt(sim.singular_values[0])
        tried = [
            (TPGD_WELL_SET, math.nan),
            (Method(SEARCH, "auto", WELL_SET), math.nan),
            (Method(TRUTH, "variable_projection", WELL_SET, truth), math.nan),
        ]
        if cell.part == START:
            tried = [(Method(TPGD, "tpgd", WELL_SET, {"init_scale": scale * root}), scale)
                     for scale in STARTS]  # fmt: skip
        for method, scale in tried:
            end = run_until_settled(problem, method, CAP)
            yield cell.row(method=method.name, setting=WELL_SET, rate=scale,
                           iteration=end.n_iter, error=problem.error(end.B @ end.W))  # fmt: skip

    def draw(self, table: ResultTable) -> Any:
        """Four maps of the share of successes, with one scale of colours."""
        figure, panels = blank_figure(2, 2, (10.5, 8.2))
        rows = table.where(part=ROWS)
        d, T = rows.rows[0]["d"], rows.rows[0]["T"]
        maps = (
            (TPGD, None, "TPGD: at most 1.5 times the floor"),
            (TPGD, TRUTH, "TPGD: at most 1.5 times a run from the truth"),
            (SEARCH, TRUTH, "several starts: at most 1.5 times a run from the truth"),
        )
        for panel, (method, against, title) in zip((*panels[0], panels[1][0]), maps, strict=True):
            place = draw_map(panel, successes(rows, against).where(method=method), "rate", "k")
            k = np.geomspace(0.5, 2 * max(rows.values("k")), 100)
            count, height = place(k * (d + T - k) / (T * d), "rate"), place(k, "k")
            panel.plot(count, height, label="NT = k(d+T-k)", **DASHED | {"lw": 2.5})
            panel.plot(place(k, "rate"), height, color="#D55E00", lw=2.5, label="N = dk")
            panel.set(title=title, xlabel="rows per task over features, N/d", ylabel="rank, k")
        last = panels[1][1]
        draw_map(last, successes(table.where(part=START)), "rate", "kappa")
        last.set(title="TPGD: at most 1.5 times the floor, N = 4d", ylabel="κ",
                 xlabel=r"start, $\tilde\alpha/\sqrt{\sigma_1}$")  # fmt: skip
        figure.colorbar(last.collections[0], ax=[*panels[0], *panels[1]], label="share of seeds")
        figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center",
                      ncols=2, frameon=False)  # fmt: skip
        return figure

    def paragraph(self, table: ResultTable) -> str:
        """Rows needed, failures told apart by their cause, and starts."""
        rows, starts = table.where(part=ROWS), table.where(part=START)
        texts = rows_sentences(rows), search_sentences(rows), starts_sentences(successes(starts))
        return "\n\n".join(texts)


def successes(table: ResultTable, against: str | None = None) -> ResultTable:
    """The error becomes one if it is at most 1.5 times the floor and zero if not.

    ``against`` names a method whose error on the same rows takes the place of the floor. A missing
    rate becomes N / d.
    """
    table = over_floor(table)
    names = ("k", "N", "seed")
    base = {tuple(row[n] for n in names): row["error"] for row in table.where(method=against).rows}
    return ResultTable(
        row | {"error": float(row["error"] <= SUCCESS * base.get(key, 1.0)),
               "rate": row["N"] / row["d"] if math.isnan(row["rate"]) else row["rate"]}
        for row in table.rows for key in [tuple(row[n] for n in names)]
    )  # fmt: skip


def least_reliable_rows(table: ResultTable) -> float:
    """The smallest N from which on nine seeds in ten succeed; infinite if there is none."""
    least = math.inf
    for N in sorted(table.values("N"), reverse=True):
        if table.where(N=N).column("error").mean() < RELIABLE:
            break
        least = N
    return least


def rows_sentences(rows: ResultTable) -> str:
    """The claim that N of the order dk is enough, and the rows that are."""
    from scipy.stats import binomtest

    rows = successes(rows)
    own, d, T = rows.where(method=TPGD), rows.rows[0]["d"], rows.rows[0]["T"]
    at_dk = [row["error"] for row in own.rows if row["N"] >= row["d"] * row["k"]]
    surely = binomtest(int(sum(at_dk)), len(at_dk)).proportion_ci(0.95).low
    scarce = [row["error"] for row in own.rows if row["N"] < row["d"]]
    needed = {k: least_reliable_rows(own.where(k=k)) for k in sorted(own.values("k"))}
    known = {k: n for k, n in needed.items() if math.isfinite(n)}
    text = (
        f"With N = dk rows per task or more, {sum(at_dk):.0f} of {len(at_dk)} runs of TPGD end "
        f"at no more than {SUCCESS} times the floor (a share of at least {surely:.3f}, at 95 "
        "percent confidence). With N < d, on which the theory is silent, "
        f"{sum(scarce):.0f} of {len(scarce)} do. "
    )
    if known:
        least = listed(f"{n / d:g} (k = {k})" for k, n in known.items())
        ratios = spread((n * T / (k * (d + T - k)) for k, n in known.items()), ".1f")
        text += (
            "The smallest N/d from which at least nine seeds in ten succeed, that is, end at no "
            f"more than {SUCCESS} times the floor, is {least}. These values of N are {ratios} "
            "times k(d+T-k)/T, the number of rows per task at which all tasks together have one "
            "row for each free parameter"
        )
        most = f"at most {max(n / (d * k) for k, n in known.items()):.2f} times dk."
        if len(known) > 1:
            power = log_slope(np.array([*known]), np.array([*known.values()]))
            text += f". They grow like k^{power:.2f} and are {most}"
        else:
            text += f", and {most}"
    return text.rstrip()


def search_sentences(rows: ResultTable) -> str:
    """Failures told apart: those of the estimator, and those of the search for its minimum."""
    own, ideal = (successes(rows).where(method=method) for method in (TPGD, TRUTH))
    both = zip(own.column("error"), ideal.column("error"), strict=True)
    failed, too_few = len(own.where(error=0.0)), sum(not a and not b for a, b in both)
    text = (
        f"Of the {failed} runs of TPGD that fail, {too_few} fail even when started at the truth: "
        "they have too few rows." if failed else "No run of TPGD fails."
    )  # fmt: skip
    for method in (TPGD, SEARCH):
        against = successes(rows, TRUTH).where(method=method)
        lost = against.where(error=0.0)
        who = "TPGD" if method == TPGD else "the solver that tries several starts"
        text += f" In {len(lost)} of {len(against)} runs {who} ends with more than {SUCCESS} times "
        text += "the error of the run that starts at the truth"
        if len(lost):
            most = max(r["N"] * r["T"] / (r["k"] * (r["d"] + r["T"] - r["k"])) for r in lost.rows)
            text += f"; in all of these NT is at most {most:.1f} times k(d+T-k)"
        text += "."
    return text


def starts_sentences(starts: ResultTable) -> str:
    """Which starts succeed, and what a small one costs."""
    sizes, kappas = sorted(starts.values("rate")), starts.values("kappa")
    safe = [size for size in sizes if starts.where(rate=size).column("error").all()]
    text = f"We tried κ = {min(kappas):g} to {max(kappas):g} and starts of {sizes[0]:g} to "
    text += f"{sizes[-1]:g} times √σ₁, with at most {CAP:,} iterations. "
    if not safe:
        return f"{text}No size of the start succeeds in every run."
    steps = {s: starts.median("iteration", rate=s, kappa=max(kappas)) for s in safe}
    small = (
        "the start that is exponentially small in κ, which Theorem 5.1 asks for, is not needed "
        "here. "
    )
    return text + (
        f"Every run from a start of {spread(safe, 'g')} times √σ₁ succeeds"
        f"{': ' + small if max(safe) >= 0.01 else '. '}"
        f"At κ = {max(kappas):g} TPGD takes a median of {steps[min(safe)]:.0f} iterations to "
        f"converge from the smallest of these starts, and {min(steps.values()):.0f} from the start "
        "with the fewest iterations."
    )


def draw_map(panel: Any, table: ResultTable, x: str, y: str) -> Callable[[Any, str], Any]:
    """The share of successes over two columns; returns the place of values on either axis."""
    grid = {name: np.array(sorted(table.values(name)), dtype=float) for name in (x, y)}
    cells = [[table.where(**{x: a, y: b}) for a in grid[x]] for b in grid[y]]
    share = [[cell.column("error").mean() for cell in row] for row in cells]
    panel.pcolormesh(np.arange(len(grid[x])), np.arange(len(grid[y])), share, vmin=0, vmax=1,
                     cmap="viridis", lw=0.3, ec="white")  # fmt: skip
    panel.grid(False)
    panel.set_xticks(range(len(grid[x])), [f"{v:g}" for v in grid[x]], rotation=60)
    panel.set_yticks(range(len(grid[y])), [f"{v:g}" for v in grid[y]])
    panel.set(xlim=(-0.5, len(grid[x]) - 0.5), ylim=(-0.5, len(grid[y]) - 0.5))

    def place(values: Any, name: str) -> Any:
        """Interpolated between grid points on a log scale, and extended beyond them."""
        logs, at = np.log(grid[name]), np.log(values)
        i = np.clip(np.searchsorted(logs, at) - 1, 0, len(logs) - 2)
        return i + (at - logs[i]) / (logs[i + 1] - logs[i])

    return place
