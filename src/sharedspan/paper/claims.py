"""The paper's claims, each with the rule that decides from its table whether it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from sharedspan.paper import curriculum, table1, table2, theory, transfer
from sharedspan.paper.curves import LOW, plotted, slowdown
from sharedspan.paper.methods import (
    ALTMIN,
    LFFO,
    LOSS_1,
    LOSS_2,
    NSGD,
    PAPER,
    PHASE_ONE_ONLY,
    PHASE_TWO_ONLY,
    SETTINGS,
    SVP,
    TPGD,
    WELL_SET,
)
from sharedspan.paper.table import ResultTable
from sharedspan.paper.verdicts import Check, Claim, Rule, median_ratios, power_check

CLAIMS: dict[Claim, Rule] = {}
Findings = Iterator[Check | str]


def claim(letter: str, says: str, experiment: str, rule: str) -> Callable[[Rule], Rule]:
    """Register a function that yields the checks of a claim, and texts on why it may fail."""

    def register(check: Rule) -> Rule:
        CLAIMS[Claim(letter, says, experiment, rule)] = check
        return check

    return register


@claim("a", "TPGD's error falls like dk/(NT).", "table1",
       "The fitted power of N is within 0.1 of -1; of k and d within 0.15 of 1; of T within "
       "0.15 of -1.")  # fmt: skip
def _error_rates(table: ResultTable) -> Findings:
    for size, target in table1.EXPECTED.items():
        rows, tolerance = table.where(part=size, method=TPGD), 0.1 if size == "N" else 0.15
        yield power_check(f"in {size}", rows, size, target, tolerance)


@claim("b", "Iterations to the floor do not grow with d, T and N.", "theory",
       "The fitted power of the iterations to 1.05 of the floor is at most 0.15: a logarithm, "
       "which the paper's Õ allows, looks like 0.1 over these ranges.")  # fmt: skip
def _flat_iterations(table: ResultTable) -> Findings:
    for setting in SETTINGS:
        for size in theory.FLAT_SWEEPS:
            rows = table.where(part=f"flat {size}", setting=setting)
            slope = rows.exponent(size, "iteration")
            x, counts = rows.median_curve("iteration", size)
            text = f"{counts[0]:.0f} at {size} = {x[0]}, {counts[-1]:.0f} at {x[-1]}; power {slope}"
            reached = bool((rows.column("iteration") > 0).all())
            yield Check(setting, reached and slope.value <= 0.15, text, f"in {size}")


@claim("c", "TPGD is the fastest of the likelihood methods without a decomposition.", "table1",
       "It needs at most 0.95 of the iterations of every rival to 1.05 of the floor "
       "(median).")  # fmt: skip
def _fastest(table: ResultTable) -> Findings:
    costs, tail = table.where(part=table1.COST), ", tail average"
    contests = (
        ("rivals by their tail average (as the paper plots them)", PAPER,
         (LOSS_1 + tail, LOSS_2 + tail, NSGD + tail)),
        ("rivals by their last iterate", PAPER, (LOSS_1, LOSS_2, NSGD)),
        ("all but GD + Loss 1, well set", WELL_SET, (LOSS_2, NSGD + tail, LFFO)),
        ("GD + Loss 1, well set", WELL_SET, (LOSS_1,)),
    )  # fmt: skip
    for where, setting, rivals in contests:
        rows = costs.where(setting=setting)
        counts = {m: rows.median("iteration", method=m) for m in (TPGD, *rivals)}
        text = ", ".join(f"{m} {table1.iterations_text(c)}" for m, c in counts.items())
        own = counts.pop(TPGD)
        yield Check(where, own <= 0.95 * min(counts.values()), text)
    one, two = (costs.median("iteration", setting=PAPER, method=m) for m in (TPGD, LOSS_1))
    yield (
        f"With one step size, Phase I and GD on Loss 1 are the same iterates: both need "
        f"{one:.0f} and {two:.0f} iterations, before Phase II begins. Averaging the tail is what "
        "makes the rival look slow."
    )


@claim("d", "TPGD has the lowest error at a fixed number of iterations.", "figure2",
       "Its median error is under 0.98 of the best rival's at every N.")  # fmt: skip
def _lowest_error(table: ResultTable) -> Findings:
    worst = {}
    for (setting, budget), rows in plotted(table).groups("setting", "iteration"):
        ratio = max(median_ratios(rows, "error", TPGD, (LOSS_1, LOSS_2, NSGD), "N"))
        text = f"at worst {ratio:.2f} of the best rival over N"
        yield Check(setting, ratio < 0.98, text, f"{budget} iterations")
        worst[budget, setting] = ratio
    first = min(table.values("iteration"))
    rows = plotted(table).where(iteration=first, setting=WELL_SET)
    ratio = max(median_ratios(rows, "error", TPGD, (LOSS_2, NSGD), "N"))
    yield (
        f"No rival is lower by more than rounding and chance (at worst {max(worst.values()):.2f} "
        "of the best rival), but GD + Loss 1, which takes the same steps, is equal, and so is "
        f"every method once it has converged. Against the other two TPGD has {ratio:.2f} of the "
        f"error after {first} iterations, well set."
    )


@claim("e", "Phase I alone is slower.", "ablation",
       "It needs over 1.05 of TPGD's iterations to come within 5 percent of TPGD's least "
       "error, at every N.")  # fmt: skip
def _phase_one_slower(table: ResultTable) -> Findings:
    for (part, setting), rows in table.groups("part", "setting"):
        ratios = [slowdown(size) for _, size in rows.groups("N")]
        text = f"{min(ratios):.2f} to {max(ratios):.2f} of TPGD's iterations"
        text = text if np.isfinite(max(ratios)) else "does not get there"
        yield Check(part, min(ratios) > 1.05, text, setting)
    last = table.where(part=LOW, setting=PAPER, iteration=max(table.values("iteration")))
    (ratio,) = median_ratios(last, "error", PHASE_ONE_ONLY, (TPGD,), "part")
    yield (
        "Until its second phase begins TPGD is Phase I alone, and by then it has converged. Both "
        f"end at the same error ({ratio:.3f} of TPGD's at k = 7)."
    )


@claim("f", "Phase II alone ends worse.", "ablation",
       "Its median error at the end is over 1.05 of TPGD's, at every N.")  # fmt: skip
def _phase_two_worse(table: ResultTable) -> Findings:
    iterations = table.values("iteration")
    early, last = min(iterations, key=lambda at: abs(at - 50)), max(iterations)
    for (part, setting), rows in table.where(iteration=last).groups("part", "setting"):
        ratios = median_ratios(rows, "error", PHASE_TWO_ONLY, (TPGD,), "N")
        text = f"{min(ratios):.2f} to {max(ratios):.2f} of TPGD's error"
        yield Check(part, min(ratios) > 1.05, text, setting)
    low = table.where(part=LOW, setting=PAPER, iteration=(early, last))
    gap, end = median_ratios(low, "error", PHASE_TWO_ONLY, (TPGD,), "iteration")
    yield (
        "All variants have one minimiser; Phase II alone takes smaller steps in the paper's "
        f"setting, so its error is larger on the way ({gap:.2f} of TPGD's after {early} iterations "
        f"at k = 7) and equal at the end ({end:.2f} after {last})."
    )


@claim("g", "TPGD stabilises in fewer iterations and at a lower loss than AltMinGD and GD + SVD.",
       "table2", "Fewer iterations and under 0.99 of the loss, at every T (median).")  # fmt: skip
def _stabilises_first(table: ResultTable) -> Findings:
    for setting in (table2.STOPPED, table2.SMALL, WELL_SET):
        rows = table2.shown_in(table, setting)
        count, loss = (
            max(median_ratios(rows, measure, TPGD, (ALTMIN, SVP), "T"))
            for measure in ("iteration", "error")
        )
        text = f"at worst {count:.2f} of a rival's iterations and {loss:.2f} of its loss"
        yield Check(setting, count < 1 and loss < 0.99, text)
    well_set = table.where(setting=WELL_SET)
    counts = ", ".join(
        f"{m} {well_set.median('iteration', method=m):.0f}" for m in (TPGD, ALTMIN, SVP)
    )
    yield (
        f"With well-set steps all three end at the same loss, after {counts} iterations. The "
        "paper's rival rows look like steps far too small: for AltMinGD "
        f"{0.5 / table2.ALTMIN_STEP:.0f} times smaller, for GD + SVD {1 / table2.SVP_STEP:.0f} "
        "times, we get counts and losses of their order."
    )


@claim("h", "With T >= d the error is of the order k/N.", "theory",
       "The fitted powers of k and N are within 0.15 of 1 and -1, and the error at the largest "
       "T is at most 1.3 σ²k/N.")  # fmt: skip
def _many_tasks(table: ResultTable) -> Findings:
    for size, target in (("k", 1.0), ("N", -1.0)):
        rows = table.where(part=f"{theory.MANY_TASKS}, {size}", method=TPGD)
        yield power_check(f"in {size}", rows, size, target, 0.15)
    along = table.where(part=f"{theory.MANY_TASKS}, T")
    row = max(along.rows, key=lambda row: row["T"])
    floor = row["noise"] ** 2 * row["k"] / row["N"]
    ratio, separate = (
        along.median("error", T=row["T"], method=m) / floor for m in (TPGD, theory.SEPARATE)
    )
    text = f"{ratio:.2f} of σ²k/N; separate regressions {separate:.1f}"
    yield Check(f"level at T = {row['T']}", ratio <= 1.3, text)


@claim("i", "A new task's excess risk is of the order dk²/(NT) + k/M.", "transfer",
       "The fitted powers of the span's term are within 0.3 of 1 in d, 2 in k, -1 in T and N; "
       "the rest, for M >= 20k, has a power of M within 0.3 of -1 and of k of at most "
       "1.3.")  # fmt: skip
def _transfer_rates(table: ResultTable) -> Findings:
    spans = {size: table.where(part=f"{transfer.SPAN} {size}") for size in ("d", "k", "T", "N")}
    for size, target in (("d", 1.0), ("k", 2.0), ("T", -1.0), ("N", -1.0)):
        yield power_check(f"span's term in {size}", spans[size], size, target, 0.3)
    for method in (transfer.SGD, transfer.LEAST_SQUARES):
        rows, where = transfer.beyond_span(table).where(method=method), f"M-term of {method}"
        rank = rows.where(part=transfer.RANK).exponent("k")
        yield power_check(where, rows.where(part="Gaussian"), "M", -1.0, 0.3)
        yield Check(f"{where} in k", rank.value <= 1.3, f"{rank} for +1 at most")
    yield (
        "The rate holds as a bound. For new tasks of unit length the span's error grows like "
        f"k^{spans['k'].exponent('k').value:.2f}, as in the paper's remark on E|w|² of order 1/k, "
        "not like k²."
    )


@claim("j", "Transfer needs only bounded kurtosis of the features.", "transfer",
       "For M >= 20k the power of M is within 0.4 of -1, and the M-term at the largest M at "
       "most 3 σ²k/(2M).")  # fmt: skip
def _any_features(table: ResultTable) -> Findings:
    beyond = transfer.beyond_span(table)
    for law in transfer.LAWS:
        rows = beyond.where(part=law, method=transfer.SGD)
        slope, row = rows.exponent("M"), max(rows.rows, key=lambda row: row["M"])
        M, bound = row["M"], row["noise"] ** 2 * row["k"] / (2 * row["M"])
        ratio = rows.median("error", M=M) / bound
        text = f"power of M {slope}; {ratio:.2f} of σ²k/(2M) at M = {M}"
        yield Check(law, slope.near(-1.0, 0.4) and ratio <= 3, text)


@claim("k", "A curriculum beats pooling.", "curriculum",
       "Its median error is below the median error of a pooled fit.")  # fmt: skip
def _curriculum_beats_pooling(table: ResultTable) -> Findings:
    for name in curriculum.ALGORITHM_3:
        ratios = median_ratios(table, "error", name, (curriculum.POOLED,), "part")
        for part, ratio in zip(table.values("part"), ratios, strict=True):
            yield Check(name, ratio < 1, f"{ratio:.2f} of pooling's error", f"noise {part}")
    part = table.values("part")[0]
    pooled, weighted, frozen = (
        table.median("error", part=part, method=m) / curriculum.error_with_B_known(part)
        for m in (curriculum.POOLED, curriculum.WEIGHTED, curriculum.FROZEN)
    )
    yield (
        "Algorithm 3 refits the span on noisier and fewer rows, which loses what was learned from "
        "the easy tasks. The idea can be saved: keeping the span of level 1, which the paper "
        f"does not propose, has {frozen:.2f} of the error with B known, plain pooling "
        f"{pooled:.2f}; but so has a pooled fit weighted by the noise, {weighted:.2f} (noise "
        f"{part})."
    )


@claim("l", "Phase I ends within σ_k^½/8 of the truth, from tiny random starts.", "theory",
       "Theorem 1's distance at the end of Phase I is at most σ_k^½/8 in every run.")  # fmt: skip
def _phase_one_ends_near(table: ResultTable) -> Findings:
    rows = table.where(part=theory.PHASE_I)
    for setting in SETTINGS:
        for kappa in sorted(rows.where(setting=setting).values("kappa")):
            worst = float(rows.where(setting=setting, kappa=kappa).column("distance").max())
            text = f"at most {worst:.3f} of σ_k^½ over starts and seeds"
            yield Check(setting, worst <= theory.RADIUS, text, f"κ = {kappa:g}")
    failed = [row for row in rows.rows if row["distance"] > theory.RADIUS]
    scarce = [row["erm"] for row in failed if row["erm"] > theory.RADIUS]
    if scarce:
        yield (
            f"In {len(scarce)} runs of {len(rows)} the minimiser of the loss is itself "
            f"{min(scarce):.3f} of σ_k^½ or more from the truth: the theorem needs rows in "
            "proportion to κ⁴, and there are too few."
        )
    if len(failed) > len(scarce):
        yield (
            f"In {len(failed) - len(scarce)} runs Phase I was not over: from that start the last "
            "direction takes longer to grow than the number of iterations that we allowed."
        )


@claim("m", "Phase II contracts at its rate.", "theory",
       "Without noise the squared distance shrinks by a factor of 1 - η₂σ_k/4 or less per "
       "iteration, in every run.")  # fmt: skip
def _phase_two_contracts(table: ResultTable) -> Findings:
    noiseless = table.where(part=theory.PHASE_II, noise=0.0)
    for kappa in sorted(noiseless.values("kappa")):
        rows = noiseless.where(kappa=kappa)
        rate = max(theory.contraction(seed) for _, seed in rows.groups("seed"))
        bound = rows.rows[0]["rate"]
        text = f"{rate:.4f} per iteration, bound {bound:.4f}"
        yield Check(f"κ = {kappa:g}", rate <= bound, text)


@claim("n", "The rivals' error grows like k².", "table1",
       "The fitted power of k is within 0.3 of 2.")  # fmt: skip
def _squared_rank(table: ResultTable) -> Findings:
    squared = [method for method, bound in table1.RATES.items() if "k²" in bound]
    rows = table.where(part="k")
    for method in squared:
        yield power_check(method, rows.where(method=method), "k", 2.0, 0.3)
    slopes = {m: rows.where(method=m).exponent("k").value for m in (*squared, TPGD)}
    text = ", ".join(f"{method} {slope:+.2f}" for method, slope in slopes.items())
    yield f"The k² of the rivals is in their bounds, not in their errors: {text}."
