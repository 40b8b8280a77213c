"""The paper's claims, each with a rule that decides from the tables whether it holds.

A rule is checked in every setting it applies to. All checks pass: the claim holds. Some pass: it
holds under the conditions that are listed. None: it is not reproduced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from sharedspan.paper import ablation, curriculum, figure1, table1, table2, theory, transfer
from sharedspan.paper.exponents import Exponent, exponent
from sharedspan.paper.methods import LFFO, LOSS_1, LOSS_2, NSGD, TPGD
from sharedspan.paper.problem import PAPER, WELL_SET
from sharedspan.paper.table import Table

HOLDS, CONDITIONAL, NOT = "holds", "holds under a condition", "not reproduced"


@dataclass(frozen=True)
class Check:
    """A rule in one setting: did it pass, and by which figures."""

    where: str
    passed: bool
    figures: str
    within: str = ""  # of ``where``, which several checks may share

    @property
    def place(self) -> str:
        return f"{self.where}, {self.within}" if self.within else self.where


@dataclass(frozen=True)
class Claim:
    """What the paper says, and the rule we hold it to."""

    letter: str
    says: str
    experiment: str
    rule: str
    check: Callable[[Table], Iterator[Check]]
    reason: Callable[[Table], str] | None = None


@dataclass(frozen=True)
class Verdict:
    """A claim with its checks."""

    claim: Claim
    checks: list[Check]
    reason: str

    @property
    def outcome(self) -> str:
        passed = [check.passed for check in self.checks]
        return HOLDS if all(passed) else CONDITIONAL if any(passed) else NOT

    def places(self, passed: bool) -> str:
        """Where it holds, or where not, what several share told once."""
        groups: dict[str, list[str]] = {}
        for check in self.checks:
            if check.passed == passed:
                groups.setdefault(check.where, []).append(check.within)
        return "; ".join(
            where + (f" ({' or '.join(within)})" if any(within) else "")
            for where, within in groups.items()
        )


def verdicts(tables: dict[str, Table]) -> list[Verdict]:
    """The verdicts that these tables allow."""
    found: list[Verdict] = []
    for claim in CLAIMS:
        table = tables.get(claim.experiment)
        if table is None or not len(table):
            continue
        checks = list(claim.check(table))
        if not checks:
            continue
        reason = ""
        if claim.reason is not None and not all(check.passed for check in checks):
            reason = claim.reason(table)
        found.append(Verdict(claim, checks, reason))
    return found


def median_over_seeds(table: Table, measure: str) -> float:
    """Median over seeds; a run that never got there counts as infinite."""
    values = table.column(measure).astype(float)
    return float(np.median(np.where(values < 0, np.inf, values)))


# (a) --------------------------------------------------------------------------------------------

TOLERANCE = {"N": 0.1, "k": 0.15, "d": 0.15, "T": 0.15}


def _rates(table: Table) -> Iterator[Check]:
    for size in table1.SWEEPS:
        slope = exponent(table.where(part=size, method=TPGD), size)
        target = table1.EXPECTED[size]
        yield Check(f"in {size}", slope.near(target, TOLERANCE[size]), f"{slope} for {target:+.0f}")


# (b) --------------------------------------------------------------------------------------------


def _flat(table: Table) -> Iterator[Check]:
    for setting in (PAPER, WELL_SET):
        for size in theory.FLAT:
            here = table.where(part=f"flat {size}", setting=setting)
            slope = exponent(here, size, "iteration")
            x, counts = here.median("iteration", size)
            text = f"{counts[0]:.0f} at {size} = {x[0]}, {counts[-1]:.0f} at {x[-1]}; power {slope}"
            reached = bool((here.column("iteration") > 0).all())
            yield Check(setting, reached and slope.value <= 0.15, text, f"in {size}")


# (c) --------------------------------------------------------------------------------------------


def _fastest(table: Table) -> Iterator[Check]:
    cost = table.where(part=table1.COST)
    tail = ", tail average"
    contests = (
        ("rivals by their tail average (as the paper plots them)", PAPER,
         (LOSS_1 + tail, LOSS_2 + tail, NSGD + tail)),
        ("rivals by their last iterate", PAPER, (LOSS_1, LOSS_2, NSGD)),
        ("all but GD + Loss 1, well set", WELL_SET, (LOSS_2, NSGD + tail, LFFO)),
        ("GD + Loss 1, well set", WELL_SET, (LOSS_1,)),
    )  # fmt: skip
    for where, setting, rivals in contests:
        here = cost.where(setting=setting)
        counts = {m: median_over_seeds(here.where(method=m), "iteration") for m in (TPGD, *rivals)}
        best = min(count for method, count in counts.items() if method != TPGD)
        text = ", ".join(f"{m} {iterations_text(c)}" for m, c in counts.items())
        yield Check(where, counts[TPGD] <= 0.95 * best, text)


def iterations_text(value: float) -> str:
    """A count, or that it lies beyond what was run."""
    return f"{value:.0f}" if np.isfinite(value) else f"over {table1.CAP}"


def _same_iterates(table: Table) -> str:
    cost = table.where(part=table1.COST, setting=PAPER)
    one, two = (median_over_seeds(cost.where(method=m), "iteration") for m in (TPGD, LOSS_1))
    return (
        f"With one step size, Phase I and GD on Loss 1 are the same iterates: both need "
        f"{one:.0f} and {two:.0f} iterations, before Phase II begins. Averaging the tail is what "
        "makes the rival look slow."
    )


# (d) --------------------------------------------------------------------------------------------


def _ratios(table: Table, setting: str, rivals: tuple[str, ...]) -> Iterator[tuple[int, float]]:
    """Budgets, with the largest ratio over N of TPGD's median error to the best of the rivals."""
    for budget in sorted(table.values("iteration")):
        worst = 0.0
        for _, here in table.where(iteration=budget).groups("N"):
            errors = {}
            for method in (TPGD, *rivals):
                rows, measure = figure1.shown(here, method, setting)
                errors[method] = median_over_seeds(rows, measure)
            worst = max(worst, errors[TPGD] / min(errors[rival] for rival in rivals))
        yield budget, worst


def _lowest(table: Table) -> Iterator[Check]:
    for setting in (PAPER, WELL_SET):
        for budget, worst in _ratios(table, setting, (LOSS_1, LOSS_2, NSGD)):
            yield Check(setting, worst < 0.98, f"at worst {worst:.2f} of the best rival over N",
                        f"{budget} iterations")  # fmt: skip


def _level(table: Table) -> str:
    all_rivals = [
        r for s in (PAPER, WELL_SET) for _, r in _ratios(table, s, (LOSS_1, LOSS_2, NSGD))
    ]
    others = dict(_ratios(table, WELL_SET, (LOSS_2, NSGD)))
    first = min(others)
    return (
        f"Nobody is lower by more than rounding and chance (at worst {max(all_rivals):.2f} of the "
        "best rival), but GD + Loss 1, which takes the same steps, is level, and so is every "
        f"method once it has converged. Against the other two TPGD has {others[first]:.2f} of the "
        f"error after {first} iterations, well set."
    )


# (e), (f) ---------------------------------------------------------------------------------------


def _ablation_cells(table: Table) -> Iterator[tuple[str, str, Table]]:
    for part in table.values("part"):
        for setting in (PAPER, WELL_SET):
            yield part, setting, table.where(part=part, setting=setting)


def _time_to_reach(table: Table, level: float) -> float:
    """The first checkpoint where the median error is within 5 percent of a level."""
    x, error = table.median("error", "iteration")
    reached = np.flatnonzero(error <= 1.05 * level)
    return float(x[reached[0]]) if len(reached) else np.inf


def _phase_one_slower(table: Table) -> Iterator[Check]:
    for part, setting, here in _ablation_cells(table):
        ratios = []
        for _, rows in here.groups("N"):
            both, alone = rows.where(method=TPGD), rows.where(method="Phase I only")
            level = both.median("error", "iteration")[1].min()
            ratios.append(_time_to_reach(alone, level) / _time_to_reach(both, level))
        text = f"{min(ratios):.2f} to {max(ratios):.2f} of TPGD's iterations"
        if not np.isfinite(max(ratios)):
            text = "does not get there"
        yield Check(part, min(ratios) > 1.05, text, setting)


def _phase_two_worse(table: Table) -> Iterator[Check]:
    last = max(table.values("iteration"))
    for part, setting, here in _ablation_cells(table):
        ratios = [
            median_over_seeds(rows.where(method="Phase II only"), "error")
            / median_over_seeds(rows.where(method=TPGD), "error")
            for _, rows in here.where(iteration=last).groups("N")
        ]
        text = f"{min(ratios):.2f} to {max(ratios):.2f} of TPGD's error"
        yield Check(part, min(ratios) > 1.05, text, setting)


def _nearest(table: Table, wanted: float) -> int:
    return min(table.values("iteration"), key=lambda at: abs(at - wanted))


def _phase_one_is_the_same(table: Table) -> str:
    here = table.where(part=ablation.LOW, setting=PAPER, iteration=max(table.values("iteration")))
    both, one = (median_over_seeds(here.where(method=m), "error") for m in (TPGD, "Phase I only"))
    return (
        "Until its second phase begins TPGD is Phase I alone, and by then it has arrived. Both end "
        f"at the same error ({one / both:.3f} of TPGD's at k = 7)."
    )


def _phase_two_takes_longer(table: Table) -> str:
    last = max(table.values("iteration"))
    here = table.where(part=ablation.LOW, setting=PAPER)
    early = _nearest(table, 50)
    gap, end = (
        median_over_seeds(here.where(method="Phase II only", iteration=at), "error")
        / median_over_seeds(here.where(method=TPGD, iteration=at), "error")
        for at in (early, last)
    )
    return (
        "All variants have one minimiser; Phase II alone takes smaller steps in the paper's "
        f"setting, so it is behind on the way ({gap:.2f} of TPGD's error after {early} iterations "
        f"at k = 7) and level at the end ({end:.2f} after {last})."
    )


# (g) --------------------------------------------------------------------------------------------


def _table_two(table: Table) -> Iterator[Check]:
    for setting in (table2.STOPPED, table2.SMALL, WELL_SET):
        counts, losses = [], []
        for _, here in table.groups("T"):
            rows = here.where(method=TPGD, setting=table2.source_of(TPGD, setting))
            own = {m: median_over_seeds(rows, m) for m in ("iteration", "error")}
            for rival in (table2.ALTMIN, table2.SVP):
                rows = here.where(method=rival, setting=setting)
                counts.append(own["iteration"] / median_over_seeds(rows, "iteration"))
                losses.append(own["error"] / median_over_seeds(rows, "error"))
        better = max(counts) < 1 and max(losses) < 0.99
        yield Check(setting, better, f"at worst {max(counts):.2f} of a rival's iterations and "
                    f"{max(losses):.2f} of its loss")  # fmt: skip


def _well_set_rivals(table: Table) -> str:
    here = table.where(setting=WELL_SET)
    counts = {m: median_over_seeds(here.where(method=m), "iteration")
              for m in (TPGD, table2.ALTMIN, table2.SVP)}  # fmt: skip
    text = ", ".join(f"{method} {count:.0f}" for method, count in counts.items())
    return (
        f"With well-set steps all three end at the same loss, after {text} iterations. The paper's "
        "rival rows look like steps far too small: for AltMinGD "
        f"{0.5 / table2.ALTMIN_STEP:.0f} times smaller, for GD + SVD {1 / table2.SVP_STEP:.0f} "
        "times, we get counts and losses of their order."
    )


# (h) --------------------------------------------------------------------------------------------


def _many_tasks(table: Table) -> Iterator[Check]:
    own = table.where(method=TPGD)
    for size, target in (("k", 1.0), ("N", -1.0)):
        slope = exponent(own.where(part=f"T >= d, {size}"), size)
        yield Check(f"in {size}", slope.near(target, 0.15), f"{slope} for {target:+.0f}")
    along = table.where(part="T >= d, T")
    most = along.where(T=max(along.values("T")))
    row = most.rows[0]
    floor = row["noise"] ** 2 * row["k"] / row["N"]
    ratio = median_over_seeds(most.where(method=TPGD), "error") / floor
    separate = median_over_seeds(most.where(method="separate"), "error") / floor
    yield Check(f"level at T = {row['T']}", ratio <= 1.3,
                f"{ratio:.2f} of σ²k/N; separate regressions {separate:.1f}")  # fmt: skip


# (i), (j) ---------------------------------------------------------------------------------------


def _beyond_span(table: Table) -> Table:
    """Risks less that of the best weights in the span, seed by seed."""
    best = {
        (r["part"], r["M"], r["k"], r["seed"]): r["error"]
        for r in table.where(method=transfer.BEST).rows
    }
    return Table(
        row | {"error": row["error"] - best[row["part"], row["M"], row["k"], row["seed"]]}
        for row in table.where(method=(transfer.SGD, transfer.LEAST_SQUARES)).rows
        if row["M"] >= 20 * row["k"]
    )


def _span_terms(table: Table) -> Iterator[Check]:
    for size, target in (("d", 1.0), ("k", 2.0), ("T", -1.0), ("N", -1.0)):
        slope = exponent(table.where(part=f"{transfer.SPAN} {size}"), size)
        yield Check(f"span's term in {size}", slope.near(target, 0.3), f"{slope} for {target:+.0f}")
    beyond = _beyond_span(table)
    for method in (transfer.SGD, transfer.LEAST_SQUARES):
        slope = exponent(beyond.where(part="Gaussian", method=method), "M")
        yield Check(f"M-term of {method}", slope.near(-1.0, 0.3), f"{slope} for -1")
        rank = exponent(beyond.where(part="rank", method=method), "k")
        yield Check(f"M-term of {method} in k", rank.value <= 1.3, f"{rank} for +1 at most")


def _unit_tasks(table: Table) -> str:
    slope = exponent(table.where(part=f"{transfer.SPAN} k"), "k")
    return (
        "As a bound it holds. For new tasks of unit length the span's error grows like "
        f"k^{slope.value:.2f}, as the paper's remark on E|w|² of order 1/k has it, not like k²."
    )


def _any_features(table: Table) -> Iterator[Check]:
    beyond = _beyond_span(table)
    for law in transfer.LAWS:
        here = beyond.where(part=law, method=transfer.SGD)
        slope = exponent(here, "M")
        most = here.where(M=max(here.values("M")))
        row = most.rows[0]
        ratio = median_over_seeds(most, "error") / (row["noise"] ** 2 * row["k"] / (2 * row["M"]))
        yield Check(law, slope.near(-1.0, 0.4) and ratio <= 3,
                    f"power of M {slope}; {ratio:.2f} of σ²k/(2M) at M = {row['M']}")  # fmt: skip


# (k) --------------------------------------------------------------------------------------------


def _beats_pooling(table: Table) -> Iterator[Check]:
    for name in curriculum.ALGORITHM_3:
        for part in table.values("part"):
            here = table.where(part=part)
            pooled = median_over_seeds(here.where(method=curriculum.POOLED), "error")
            ratio = median_over_seeds(here.where(method=name), "error") / pooled
            yield Check(name, ratio < 1, f"{ratio:.2f} of pooling's error", f"noise {part}")


def _curriculum_reason(table: Table) -> str:
    part = table.values("part")[0]
    here = table.where(part=part)
    pooled, weighted, kept = (
        median_over_seeds(here.where(method=m), "error") / curriculum.oracle(part)
        for m in (curriculum.POOLED, curriculum.WEIGHTED, "span of level 1 kept")
    )
    return (
        "Algorithm 3 refits the span on noisier rows, and on fewer of them, which loses what the "
        "easy tasks taught. The idea can be saved: keeping the span of level 1, which the paper "
        f"does not propose, has {kept:.2f} of the error with B known, plain pooling {pooled:.2f}; "
        f"but so has a pooled fit weighted by the noise, {weighted:.2f} (noise {part})."
    )


# (l), (m) ---------------------------------------------------------------------------------------


def _phase_one_ends_near(table: Table) -> Iterator[Check]:
    here = table.where(part=theory.PHASE_I)
    for setting in (PAPER, WELL_SET):
        for kappa in sorted(here.where(setting=setting).values("kappa")):
            rows = here.where(setting=setting, kappa=kappa)
            worst = float(rows.column("distance").max())
            yield Check(setting, worst <= theory.RADIUS,
                        f"at most {worst:.3f} of σ_k^½ over starts and seeds",
                        f"κ = {kappa:g}")  # fmt: skip


def _why_phase_one_ends_far(table: Table) -> str:
    rows = table.where(part=theory.PHASE_I)
    failed = Table(r for r in rows.rows if r["distance"] > theory.RADIUS)
    scarce = Table(r for r in failed.rows if r["erm"] > theory.RADIUS)
    reasons = []
    if len(scarce):
        low = float(scarce.column("erm").min())
        reasons.append(
            f"In {len(scarce)} runs of {len(rows)} the minimiser of the loss is itself {low:.3f} "
            "of σ_k^½ or more from the truth: the theorem asks for rows in proportion to κ⁴, and "
            "there are too few."
        )
    if len(failed) > len(scarce):
        reasons.append(
            f"In {len(failed) - len(scarce)} runs Phase I was not over: from that start the last "
            "direction takes longer to grow than the length we gave it."
        )
    return " ".join(reasons)


def contraction(table: Table) -> float:
    """Factor on the squared distance per iteration, fitted while it can still be measured."""
    inside = Table(row for row in table.rows if row["distance"] > 1e-9)
    x, y = inside.median("distance", "iteration")
    return float(np.exp(np.polyfit(x, 2 * np.log(y), 1)[0]))


def _phase_two_contracts(table: Table) -> Iterator[Check]:
    here = table.where(part=theory.PHASE_II, noise=0.0)
    for kappa in sorted(here.values("kappa")):
        rows = here.where(kappa=kappa)
        rate = max(contraction(seed) for _, seed in rows.groups("seed"))
        bound = rows.rows[0]["rate"]
        yield Check(f"κ = {kappa:g}", rate <= bound,
                    f"{rate:.4f} per iteration, bound {bound:.4f}")  # fmt: skip


# (n) --------------------------------------------------------------------------------------------

SQUARED = ("MoM (Tripuraneni)", "AltMinGD", "ERM (ALS)", "ARMUL", "pERM")


def rank_exponents(table: Table) -> dict[str, Exponent]:
    """Powers of k in the error of the methods whose bound has k^2."""
    return {m: exponent(table.where(part="k", method=m), "k") for m in SQUARED}


def _squared(table: Table) -> Iterator[Check]:
    for method, slope in rank_exponents(table).items():
        yield Check(method, slope.near(2.0, 0.3), f"{slope} for +2")


def _bounds_are_loose(table: Table) -> str:
    slopes = rank_exponents(table)
    own = exponent(table.where(part="k", method=TPGD), "k")
    text = ", ".join(f"{method} {slope.value:+.2f}" for method, slope in slopes.items())
    return (
        f"The k² of the rivals is in their bounds, not in their errors: {text}, TPGD "
        f"{own.value:+.2f}."
    )


CLAIMS = (
    Claim("a", "TPGD's error falls like dk/(NT).", table1.NAME,
          "The fitted power of N is within 0.1 of -1; of k and d within 0.15 of 1; of T within "
          "0.15 of -1.", _rates),
    Claim("b", "Iterations to the floor do not grow with d, T and N.", theory.NAME,
          "The fitted power of the iterations to 1.05 of the floor is at most 0.15: a logarithm, "
          "which the paper's Õ allows, looks like 0.1 over these ranges.", _flat),
    Claim("c", "TPGD is the fastest of the likelihood methods without a decomposition.",
          table1.NAME, "It needs at most 0.95 of the iterations of every rival to 1.05 of the "
          "floor (median).", _fastest, _same_iterates),
    Claim("d", "TPGD has the lowest error at a fixed number of iterations.", "figure2",
          "Its median error is under 0.98 of the best rival's at every N.", _lowest, _level),
    Claim("e", "Phase I alone is slower.", ablation.NAME,
          "It needs over 1.05 of TPGD's iterations to come within 5 percent of TPGD's least "
          "error, at every N.", _phase_one_slower, _phase_one_is_the_same),
    Claim("f", "Phase II alone ends worse.", ablation.NAME,
          "Its median error at the end is over 1.05 of TPGD's, at every N.", _phase_two_worse,
          _phase_two_takes_longer),
    Claim("g", "TPGD stabilises in fewer iterations and at a lower loss than AltMinGD and GD + "
          "SVD.", table2.NAME, "Fewer iterations and under 0.99 of the loss, at every T (median).",
          _table_two, _well_set_rivals),
    Claim("h", "With T >= d the error is of the order k/N.", theory.NAME,
          "The fitted powers of k and N are within 0.15 of 1 and -1, and the error at the largest "
          "T is at most 1.3 σ²k/N.", _many_tasks),
    Claim("i", "A new task's excess risk is of the order dk²/(NT) + k/M.", transfer.NAME,
          "The fitted powers of the span's term are within 0.3 of 1 in d, 2 in k, -1 in T and N; "
          "the rest, for M >= 20k, has a power of M within 0.3 of -1 and of k of at most 1.3.",
          _span_terms, _unit_tasks),
    Claim("j", "Transfer needs only bounded kurtosis of the features.", transfer.NAME,
          "For M >= 20k the power of M is within 0.4 of -1, and the M-term at the largest M at "
          "most 3 σ²k/(2M).", _any_features),
    Claim("k", "A curriculum beats pooling.", curriculum.NAME,
          "Its median error is below that of a pooled fit.", _beats_pooling, _curriculum_reason),
    Claim("l", "Phase I ends within σ_k^½/8 of the truth, from tiny random starts.", theory.NAME,
          "Theorem 1's distance at the end of Phase I is at most σ_k^½/8 in every run.",
          _phase_one_ends_near, _why_phase_one_ends_far),
    Claim("m", "Phase II contracts at its rate.", theory.NAME,
          "Without noise the squared distance shrinks by a factor of 1 - η₂σ_k/4 or less per "
          "iteration, in every run.", _phase_two_contracts),
    Claim("n", "The rivals' error grows like k².", table1.NAME,
          "The fitted power of k is within 0.3 of 2.", _squared, _bounds_are_loose),
)  # fmt: skip
