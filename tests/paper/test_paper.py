"""The paper's experiments: tables, rules, verdicts, and the committed run."""

import csv
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose

import sharedspan as ss
from sharedspan.cli import main
from sharedspan.datasets.simulate import simulate
from sharedspan.paper import (
    EXPERIMENTS,
    crossover,
    curriculum,
    experiment_named,
    table1,
    table2,
    transfer,
)
from sharedspan.paper.claims import CLAIMS
from sharedspan.paper.experiment import Cell, run_cell
from sharedspan.paper.methods import FIGURE_METHODS, LIKELIHOOD_METHODS
from sharedspan.paper.page import results_page
from sharedspan.paper.problem import (
    SimulatedProblem,
    TailAverage,
    counted_decompositions,
    geometric,
)
from sharedspan.paper.runner import TIMES, Store, reproduce_all
from sharedspan.paper.table import (
    Exponent,
    ResultTable,
    TableError,
    read_results,
    result_row,
    rounded,
    write_results,
)
from sharedspan.paper.verdicts import (
    BOUND,
    CONDITIONAL,
    HOLDS,
    NOT,
    ORDER,
    SUPERIORITY,
    Check,
    PairedRatio,
    Verdict,
    bound_check,
    judge,
    order_check,
    paired_ratio,
)

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "docs" / "reproduction"
PAPER = ROOT.parent / "shared" / "paper" / "paper.tex"
CURRICULUM = experiment_named("curriculum")
SMALL = Cell("figure1", "", 12, 10, 2, 60, 0, iterations=40, methods=FIGURE_METHODS[:4])


@pytest.fixture(scope="module")
def committed():
    return {name: read_results(COMMITTED / f"{name}.csv") for name in EXPERIMENTS}


@pytest.fixture(scope="module")
def command():
    """The command that made the committed page."""
    page = (COMMITTED / "results.md").read_text(encoding="utf-8")
    return re.search("Made by `(.*?)`", page).group(1)


# The table --------------------------------------------------------------------------------------


def test_a_table_comes_back_as_it_was_written(tmp_path):
    rows = [
        rounded(result_row(experiment="x", method="a, b", N=3, error=1 / 3, seed=0)),
        rounded(result_row(experiment="x", part='"quoted"', iteration=10, loss=1e-300)),
    ]
    write_results(tmp_path / "x.csv", rows)
    back = read_results(tmp_path / "x.csv").rows
    for row, read in zip(rows, back, strict=True):
        for name, value in row.items():
            assert read[name] == value or (value != value and read[name] != read[name])
    assert [p.name for p in tmp_path.iterdir()] == ["x.csv"]


def test_a_failed_write_leaves_the_old_table(tmp_path):
    write_results(tmp_path / "x.csv", [result_row(experiment="x")])
    before = (tmp_path / "x.csv").read_bytes()

    def rows():
        yield result_row(experiment="y")
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError):
        write_results(tmp_path / "x.csv", rows())
    assert (tmp_path / "x.csv").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_medians_and_groups_follow_their_columns():
    table = ResultTable(
        result_row(method=m, N=n, seed=s, error=float(n + s))
        for m in "ab" for n in (2, 1) for s in range(3)
    )  # fmt: skip
    x, y = table.where(method="a").median_curve("error", "N")
    assert_allclose(x, [1, 2])
    assert_allclose(y, [2.0, 3.0])
    assert [key for key, _ in table.groups("method")] == ["a", "b"]
    assert len(table.where(method=("a", "b"), seed=0)) == 4


def test_an_exact_power_law_has_its_exponent_and_no_width():
    table = ResultTable(
        result_row(N=n, seed=s, error=(1 + s) * n**-1.25) for n in (10, 20, 80) for s in (0, 1)
    )
    slope = table.exponent("N")
    assert_allclose([slope.value, slope.low, slope.high], -1.25, atol=1e-9)
    assert slope.near(-1.2, 0.06)
    assert not slope.near(-1.2, 0.04)
    assert np.isinf(table.where(seed=0).exponent("N").high)


def test_the_interval_of_an_exponent_covers_the_truth_at_its_rate():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        rows = [
            result_row(N=n, seed=s, error=n**-1.0 * np.exp(0.1 * rng.standard_normal()))
            for n in (10, 20, 40, 80) for s in range(5)
        ]  # fmt: skip
        slope = ResultTable(rows).exponent("N")
        covered += slope.low <= -1.0 <= slope.high
    assert 0.91 <= covered / 300 <= 0.985


# Runs -------------------------------------------------------------------------------------------


def test_the_tail_average_is_the_mean_of_the_last_half():
    rng = np.random.default_rng(0)
    tail, seen = TailAverage(), []
    for j in range(1, 12):
        B, W = rng.standard_normal((4, 2)), rng.standard_normal((2, 3))
        seen.append(B @ W)
        assert_allclose(tail.add(B, W), np.mean(seen[-((j + 1) // 2) :], axis=0), atol=1e-12)


def test_checkpoints_begin_at_one_and_end_at_the_last():
    points = geometric(1000)
    assert points[0] == 1
    assert points[-1] == 1000
    assert points == sorted(set(points))
    assert max(np.diff(np.log(points[12:]))) < 0.2


def test_the_same_cell_gives_the_same_rows_and_other_seeds_others():
    first, again = run_cell(SMALL), run_cell(SMALL)
    assert [repr(row) for row in first] == [repr(row) for row in again]
    other = run_cell(dataclasses.replace(SMALL, seed=1))
    assert first[-1]["error"] != other[-1]["error"]
    assert {row["method"] for row in first} == {"TPGD", "GD + Loss 1", "GD + Loss 2", "NSGD"}


def test_errors_are_those_of_the_truth_and_validation_is_the_expected_loss():
    problem = SimulatedProblem(SMALL)
    assert problem.error(problem.V) == 0
    assert_allclose(problem.error(0 * problem.V), np.mean(np.sum(problem.sim.coef**2, axis=1)))
    V = 0.5 * problem.V
    rng = np.random.default_rng(1)
    losses = []
    for v, truth in zip(V.T, problem.V.T, strict=True):
        X = rng.standard_normal((40_000, 12))
        y = X @ truth + 0.4 * rng.standard_normal(len(X))
        losses.append(np.mean((y - X @ v) ** 2) / 2)
    assert_allclose(problem.validation(V), np.sum(losses), rtol=0.01)


def test_the_reference_fit_is_that_of_the_estimator():
    problem = SimulatedProblem(SMALL)
    sim = problem.sim
    model = ss.SharedSpanRegressor(
        rank=2, fit_intercept=False, whiten=False, solver="als", tol=1e-10, random_state=0
    ).fit(sim.X, sim.y, task=sim.task)
    assert_allclose(np.dot(*problem.minimiser), model.coef_.T, atol=1e-6)


def test_decompositions_are_counted_as_the_paper_counts_them():
    problem = SimulatedProblem(SMALL)
    counts = {
        m.name: problem.counts(m, 500) for m in LIKELIHOOD_METHODS if m.setting == "well set"
    }  # fmt: skip
    for method in ("TPGD", "GD + Loss 1", "GD + Loss 2", "LF-FO"):
        assert counts[method]["decompositions"] == 0
    assert counts["GD + SVD"]["decompositions"] == 1
    assert counts["AltMinGD"]["decompositions"] >= 1
    assert 0 < counts["TPGD"]["iteration"] < counts["TPGD"]["averaged"] < 150


def test_counting_decompositions_leaves_numpy_as_it_was():
    before = np.linalg.svd
    with counted_decompositions() as counter:
        np.linalg.svd(np.eye(3))
        np.linalg.qr(np.eye(3))
    assert counter == [2]
    assert np.linalg.svd is before


def test_with_the_papers_steps_phase_one_and_gd_on_loss_1_are_the_same_iterates():
    problem = SimulatedProblem(SMALL)
    tpgd, loss_1 = (problem.solve(m, 40) for m in FIGURE_METHODS[:2])
    phase_one = problem.solve(FIGURE_METHODS[0], 80, lambda at: at["iteration"] == 40)
    assert_allclose(phase_one.B, loss_1.B, rtol=1e-12)
    assert np.abs(tpgd.B - loss_1.B).max() > 1e-6


@pytest.mark.parametrize("kappa", [1.5, 2.0])
def test_the_fewest_iterations_are_those_of_the_best_k1(kappa, monkeypatch):
    monkeypatch.setattr(crossover, "CAP", 400)
    problem = SimulatedProblem(dataclasses.replace(SMALL, kappa=kappa, N=300))
    target = 1.05 * problem.erm
    tpgd, fewest = FIGURE_METHODS[0], 10**9
    for K_1 in range(2, 400, 2):  # a run of Algorithm 1 for each
        seen = []
        problem.solve(
            tpgd, K_1, lambda at, seen=seen: seen.append(problem.error(at["B"] @ at["W"]))
        )
        hits = [i for i, error in enumerate(seen, 1) if error <= target]
        fewest = min(fewest, *hits[:1], 10**9)
    assert crossover.fewest_iterations(problem)["iteration"] == fewest


def test_gaussian_factors_have_the_singular_values_of_a_gaussian_product():
    sims = [simulate(n_tasks=40, n_features=60, rank=4, n_samples=1, condition_number=None,
                     random_state=s) for s in range(60)]  # fmt: skip
    for sim in sims[:3]:
        s = np.linalg.svd(sim.coef, compute_uv=False)
        assert_allclose(s[:4], sim.singular_values)
        assert_allclose(np.mean(np.sum(sim.coef**2, axis=1)), 1.0)
    rng = np.random.default_rng(0)
    direct = [np.linalg.svd(rng.standard_normal((60, 4)) @ rng.standard_normal((4, 40)),
                            compute_uv=False)[:4] for _ in range(60)]  # fmt: skip
    ours, theirs = (
        np.median([s[0] / s[-1] for s in group])
        for group in ([sim.singular_values for sim in sims], direct)
    )
    assert_allclose(ours, theirs, rtol=0.1)


def test_the_nuclear_norm_fit_meets_its_optimality_conditions():
    problem = SimulatedProblem(SMALL)
    V = table1.nuclear_norm(problem)
    R = problem.gram.residuals(V)[0]
    weight = 0.4 * (np.sqrt(12) + np.sqrt(10)) / np.sqrt(60)
    U, s, Q = np.linalg.svd(V, full_matrices=False)
    r = int(np.sum(s > 1e-8))
    assert_allclose(U[:, :r].T @ R @ Q[:r].T, -weight * np.eye(r), atol=1e-3)
    assert np.linalg.svd(R, compute_uv=False)[0] <= weight * 1.001


def test_the_predicted_risk_of_a_span_is_that_of_simulated_fits():
    cell = Cell("transfer", "", 30, 20, 3, 600, 0)
    H = simulate(n_tasks=2, n_features=30, rank=1, n_samples=1, feature_condition=10.0,
                 random_state=0).covariance  # fmt: skip
    ratios = []
    for seed in range(8):
        problem = SimulatedProblem(dataclasses.replace(cell, seed=seed))
        B, _ = np.linalg.qr(problem.minimiser[0])
        rng = np.random.default_rng(seed)
        w = rng.standard_normal((500, 3))
        truth = w / np.linalg.norm(w, axis=1, keepdims=True) @ problem.sim.representation.T
        for covariance in (np.eye(30), H):
            best = B @ np.linalg.solve(B.T @ covariance @ B, B.T @ covariance @ truth.T)
            risk = transfer.excess_risk(best.T, truth, covariance)
            ratios.append(risk / transfer.span_risk(problem, covariance))
    assert_allclose(np.mean(ratios[::2]), 1.0, atol=0.12)
    assert_allclose(np.mean(ratios[1::2]), 1.0, atol=0.15)
    isotropic = transfer.span_risk(problem, np.eye(30))
    by_hand = 0.4**2 * 27 * np.mean(problem.sim.singular_values**-2.0) / (2 * 600)
    assert_allclose(isotropic, by_hand)


def test_the_predictions_for_a_curriculum_add_up_to_those_of_the_issue():
    cell = CURRICULUM.grid(False, 0)[0]
    d, k, T, N = cell.d, cell.k, cell.T, cell.N
    variances = np.square(curriculum.NOISE_LEVELS[cell.part])
    pooled = T * curriculum.predicted_error(cell, "pooled", 0)
    assert_allclose(pooled, T * k * variances.mean() / N + k * (d - k) * variances.mean() / N)
    rows = N - np.array([0, 40, 40])
    expected = np.sum(variances / rows * (k * T / 3 + k * (d - k)))
    assert_allclose(T * curriculum.predicted_error(cell, "Algorithm 3 (B_j w)", 0), expected)


def test_noise_of_a_t_distribution_has_its_variance_and_its_tails():
    cell = dataclasses.replace(SMALL, N=20_000)
    problem = SimulatedProblem(cell, noise_degrees=5.0)
    sim = problem.sim
    residual = sim.y - np.einsum("ij,ij->i", sim.X, sim.coef[sim.task])
    assert_allclose(residual.std(), 0.4, rtol=0.02)
    assert np.mean(np.abs(residual) > 5 * 0.4) > 1e-4  # 6e-7 for a Gaussian


# Verdicts ---------------------------------------------------------------------------------------


def verdict_on(letter, table):
    (rule,) = (c for c in CLAIMS if c.letter == letter)
    return next(iter(judge({rule: CLAIMS[rule]}, {rule.experiment: table})))


def doctored(table, change):
    """The table with the values that a function of the row returns."""
    return ResultTable(row | change(row) for row in table.rows)


def times(*columns, by, when=lambda row: True):
    """A change: these columns multiplied by a function of the row."""
    return lambda row: {c: row[c] * by(row) for c in columns if when(row)}


def of(*methods):
    return lambda row: row["method"] in methods


def instant(row):
    """TPGD in five iterations."""
    return {"iteration": 5, "averaged": 5} if row["method"] == "TPGD" else {}


def slow(row):
    """Every run of Phase II at half of the rate of its bound."""
    return {"distance": row["rate"] ** (row["iteration"] / 4)} if row["part"] == "Phase II" else {}


# For every claim, a table of which the verdict must be another one.
FLIPS = {
    "a": (times("error", by=lambda r: r["k"], when=of("TPGD")), CONDITIONAL),
    "b": (times("iteration", by=lambda r: r["d"] * r["T"] * r["N"] * r["k"]), NOT),
    "c": (instant, HOLDS),
    "d": (times("error", "tail", by=lambda r: 1e-6, when=of("TPGD")), HOLDS),
    "e": (times("iteration", by=lambda r: 9, when=of("GD + Loss 1")), HOLDS),
    "f": (times("error", by=lambda r: 99.0, when=of("Phase II only")), HOLDS),
    "g": (times("error", "iteration", by=lambda r: 0.01, when=of("TPGD")), HOLDS),
    "h": (times("error", by=lambda r: r["N"] * r["k"], when=of("TPGD")), NOT),
    "i": (times("error", by=lambda r: r["k"] ** 2), CONDITIONAL),
    "j": (times("error", by=lambda r: r["M"]), NOT),
    "k": (times("error", by=lambda r: 99.0, when=of("pooled")), HOLDS),
    "l": (times("distance", by=lambda r: 99.0), NOT),
    "m": (slow, NOT),
    "n": (times("error", by=lambda r: r["k"] ** 1.6), NOT),
}


def test_every_claim_of_the_paper_has_a_verdict(committed):
    verdicts = judge(CLAIMS, committed)
    assert sorted(v.claim.letter for v in verdicts) == list("abcdefghijklmn") == list(FLIPS)
    for verdict in verdicts:
        assert verdict.checks
        assert verdict.claim.kind in (BOUND, ORDER, SUPERIORITY)
        assert verdict.claim.hypotheses


def test_claims_without_a_table_are_left_out(committed):
    verdicts = judge(CLAIMS, {"transfer": committed["transfer"]})
    assert [v.claim.letter for v in verdicts] == ["i", "j"]


@pytest.mark.parametrize("letter", FLIPS)
def test_a_verdict_and_all_its_words_follow_the_table(letter, committed):
    experiment = next(c.experiment for c in CLAIMS if c.letter == letter)
    change, expected = FLIPS[letter]
    before = verdict_on(letter, committed[experiment])
    after = verdict_on(letter, doctored(committed[experiment], change))
    assert after.outcome == expected != before.outcome
    assert {c.figures for c in before.checks} != {c.figures for c in after.checks}
    assert not before.reason or before.reason != after.reason


@pytest.mark.parametrize("letter", FLIPS)
def test_no_sentence_of_a_verdict_survives_another_table(letter, committed):
    rng = np.random.default_rng(0)
    measures = ("error", "tail", "iteration", "averaged", "distance")
    claim = next(c for c in CLAIMS if c.letter == letter)
    fixed = ("iteration",) if claim.experiment in ("figure2", "ablation") else ()  # their axis

    def another(row):
        factors = np.exp(2 * rng.standard_normal(len(measures)))
        values = {name: row[name] * factor for name, factor in zip(measures, factors, strict=True)}
        counts = {name: 1 + round(abs(values[name])) for name in ("iteration", "averaged")}
        return {name: value for name, value in (values | counts).items() if name not in fixed}

    before, after = (
        {finding for finding in CLAIMS[claim](table) if isinstance(finding, str)}
        for table in (committed[claim.experiment], doctored(committed[claim.experiment], another))
    )
    assert not before & after


def test_two_methods_that_change_places_change_places_in_the_sentences(committed):
    names = {"TPGD": "GD + Loss 2", "GD + Loss 2": "TPGD"}
    swapped = doctored(
        committed["crossover"], lambda row: {"method": names.get(row["method"], row["method"])}
    )
    before, after = verdict_on("c", committed["crossover"]), verdict_on("c", swapped)
    assert "TPGD begins to need more iterations than GD + Loss 2 at κ" in before.reason
    assert "TPGD begins to need more iterations than GD + Loss 2 at no κ" in after.reason


def test_iterations_that_are_never_enough_are_no_flat_count(committed):
    never = doctored(committed["theory"], lambda row: {"iteration": -1})
    assert verdict_on("b", never).outcome == NOT


def test_a_bound_allows_slower_growth_and_an_order_does_not():
    slope = Exponent(0.83, 0.77, 0.89, 5)
    assert bound_check("", slope, 2.0, 0.3).passed
    assert not order_check("", slope, 2.0, 0.3).passed
    assert not bound_check("", Exponent(2.4, 2.3, 2.5, 5), 2.0, 0.3).passed


def test_superiority_needs_more_than_chance_and_more_than_two_percent():
    rng = np.random.default_rng(0)
    noisy = np.exp(rng.standard_normal(8))
    assert PairedRatio.of(0.5 * noisy, noisy).less  # the rows have noise, the pairs none
    assert not PairedRatio.of(noisy, np.ones(8)).less
    assert not PairedRatio.of(noisy, np.ones(8)).more
    assert not PairedRatio.of(0.99 * noisy, noisy).less
    assert PairedRatio.of(noisy, 0.5 * noisy).more
    assert not PairedRatio.of(np.array([0.1]), np.array([1.0])).less


def test_superiority_is_rarely_found_where_there_is_none():
    rng = np.random.default_rng(0)
    wrong = sum(PairedRatio.of(*np.exp(rng.standard_normal((2, 6)))).less for _ in range(1000))
    assert wrong / 1000 < 0.045


def test_methods_are_compared_with_the_best_rival_cell_by_cell():
    counts = {"TPGD": (10, 30), "a": (20, 40), "b": (40, -1)}
    table = ResultTable(
        result_row(method=m, seed=s, iteration=n, budget=99)
        for m, values in counts.items() for s, n in enumerate(values)
    )  # fmt: skip
    assert_allclose(paired_ratio(table, "iteration", "TPGD", ("a", "b")).ratio, np.sqrt(0.5 * 0.75))
    assert_allclose(
        paired_ratio(table, "iteration", "TPGD", ("b",)).ratio, np.sqrt(10 / 40 * 30 / 99)
    )


def test_checks_outside_the_hypotheses_do_not_count():
    inside, outside = Check("a", True, ""), Check("b", False, "", "", "too few rows")
    claim = next(iter(CLAIMS))
    assert Verdict(claim, [inside, outside], "").outcome == HOLDS
    assert Verdict(claim, [outside], "").outcome == NOT
    assert outside.word == "no (too few rows)"


def test_a_crossing_is_located_between_the_values_of_the_grid():
    table = ResultTable(
        result_row(method=m, kappa=kappa, seed=s, iteration=round(1000 * power(kappa)))
        for kappa in (1.0, 1.5, 1.6, 1.7, 3.0) for s in (0, 1)
        for m, power in (("a", lambda x: x**5 / 11), ("b", lambda x: 1.0))
    )  # fmt: skip
    measures = ("iteration", "iteration")
    assert_allclose(crossover.crossing(table, "a", "b", measures), 11**0.2, atol=0.005)
    assert crossover.crossing(table, "b", "a", measures) == []
    assert "no κ" in crossover.crossing_text([])


# The committed run ------------------------------------------------------------------------------


def test_the_committed_page_is_made_of_the_committed_tables(committed, command):
    page = results_page(committed, read_results(COMMITTED / TIMES), command)
    assert page == (COMMITTED / "results.md").read_text(encoding="utf-8")


def test_the_committed_run_is_complete_and_small(committed, command):
    for name, table in committed.items():
        assert (COMMITTED / f"{name}.png").stat().st_size > 20_000
        names = ("part", "d", "T", "k", "N", "noise", "kappa", "seed", "budget")
        keys = {tuple(row[n] for n in names) for row in table.rows}
        assert keys == {cell.key[1:] for cell in experiment_named(name).grid("full" in command, 0)}
    own = [COMMITTED / f"{name}.{kind}" for name in committed for kind in ("csv", "png")]
    assert sum(path.stat().st_size for path in own) < 10e6
    assert sum(path.stat().st_size for path in COMMITTED.iterdir()) < 12e6


def test_committed_cells_come_out_again(committed, command):
    """One cheap cell of each kind, run now, against the committed rows."""
    for name, part in (("figure1", ""), ("theory", "flat d"), ("transfer", "span d")):
        grid = experiment_named(name).grid("full" in command, 0)
        cell = next(c for c in grid if c.part == part)
        if name == "figure1":
            cell = dataclasses.replace(cell, methods=cell.methods[:3])
        for row in run_cell(cell):
            names = ("part", "method", "setting", "d", "T", "k", "N", "kappa", "seed", "M")
            same = {n: row[n] for n in names}
            if name == "figure1":
                same["iteration"] = row["iteration"]
            saved = committed[name].where(**same).rows[0]
            assert_allclose(row["error"], saved["error"], rtol=1e-3)
            assert row["iteration"] == pytest.approx(saved["iteration"], abs=1)


def test_table_one_has_the_exponents_of_the_theory(committed):
    own = committed["table1"].where(method="TPGD")
    for size, target, tolerance in (
        ("N", -1, 0.1),
        ("k", 1, 0.15),
        ("d", 1, 0.15),
        ("T", -1, 0.15),
    ):
        slope = own.where(part=size).exponent(size)
        assert abs(slope.value - target) <= tolerance


def test_table_two_has_the_losses_of_the_theory(committed):
    own = committed["table2"].where(method="TPGD")
    for (T, setting), rows in own.groups("T", "setting"):
        floor = table2.K * 0.4**2 * (table2.D + T - table2.K) / table2.N
        assert abs(np.mean(rows.column("error")) * T / floor - 1) <= 0.15, (T, setting)


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's source is not available")
def test_the_papers_numbers_are_typed_as_printed():
    text = PAPER.read_text(encoding="utf-8")
    text = text[text.index("Comparison of the number of iterations") :]
    pairs = re.findall(
        r"Iter: \$(?:\\mathbf\{)?(\d+).*?Loss: \$(?:\\mathbf\{)?([\d.]+)", text, re.DOTALL
    )
    printed = [(int(i), float(e)) for i, e in pairs[:15]]
    ours = [pair for method in ("AltMinGD", "GD + SVD", "TPGD")
            for pair in table2.PAPER_NUMBERS[method]]  # fmt: skip
    assert printed == ours


# The command ------------------------------------------------------------------------------------


def invoke(*arguments):
    return CliRunner().invoke(main, ["reproduce", *map(str, arguments)])


def test_a_wrong_name_is_told_the_right_ones():
    result = invoke("figure7")
    assert result.exit_code == 2
    assert "figure7" in result.output
    assert all(name in result.output for name in EXPERIMENTS)
    assert invoke("--seed", "-1").exit_code == 2


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        result = invoke("curriculum", "-o", folder)
        assert result.exit_code == 2
        assert "Traceback" not in result.output
        assert str(folder) in result.output.replace("\n", "")


def test_tables_of_other_runs_are_refused_with_what_to_do(tmp_path):
    cell = CURRICULUM.grid(False, 0)[0]
    path = tmp_path / "curriculum.csv"
    write_results(path, [cell.row(method="pooled", error=1.0) | {"version": "0.0.1"}])
    result = invoke("curriculum", "-o", tmp_path)
    assert result.exit_code == 2
    assert "0.0.1" in result.output
    assert "-o" in result.output
    other = dataclasses.replace(cell, seed=99)
    write_results(path, [other.row(method="pooled", error=1.0)])
    result = invoke("curriculum", "-o", tmp_path)
    assert result.exit_code == 2
    assert "another command" in result.output
    path.write_text("school,score\n1,2\n")
    result = invoke("curriculum", "-o", tmp_path)
    assert result.exit_code == 2
    assert "not a table" in result.output
    path.write_bytes(b"\xff\xfe\x00 not text")
    assert "cannot be read" in invoke("curriculum", "-o", tmp_path).output
    lines = (COMMITTED / "curriculum.csv").read_text(encoding="utf-8").splitlines()[:2]
    path.write_text(
        "\n".join([lines[0], lines[1].replace("50", "fifty", 1)]) + "\n", encoding="utf-8"
    )
    result = invoke("curriculum", "-o", tmp_path)
    assert result.exit_code == 2
    assert "cannot be read" in result.output


def test_a_store_resumes_from_what_is_there(tmp_path):
    cells = CURRICULUM.grid(False, 0)[:2]
    store = Store(tmp_path, {"curriculum": cells})
    assert store.missing() == cells
    store.add(cells[0], [cells[0].row(method="pooled", error=1.0)])
    again = Store(tmp_path, {"curriculum": cells})
    assert again.missing() == cells[1:]
    assert len(again.table("curriculum")) == 1
    with pytest.raises(TableError, match="another command"):
        Store(tmp_path, {"curriculum": cells[1:]})


def test_a_quick_table_is_not_resumed_in_full(tmp_path):
    quick, full = (experiment_named("figure1").grid(whole, 0) for whole in (False, True))
    write_results(tmp_path / "figure1.csv", [quick[0].row(method="TPGD", error=1.0)])
    with pytest.raises(TableError, match="another command"):
        Store(tmp_path, {"figure1": full})


def test_the_page_shows_what_earlier_commands_completed(tmp_path, command):
    for name in ("curriculum", "transfer"):
        (tmp_path / f"{name}.csv").write_bytes((COMMITTED / f"{name}.csv").read_bytes())
    full = "full" in command
    verdicts = reproduce_all(["transfer"], full=full, seed=0, folder=tmp_path, command="again")
    assert [verdict.claim.letter for verdict in verdicts] == ["i", "j", "k"]
    assert "## curriculum" in (tmp_path / "results.md").read_text(encoding="utf-8")


def test_measured_times_stay_out_of_the_table(tmp_path):
    cell = Cell("table1", table1.COST, 5, 4, 2, 20, 0)
    store = Store(tmp_path, {"table1": [cell]})
    store.add(cell, [cell.row(method="TPGD", seconds=0.25, iteration=3)])
    with (tmp_path / "table1.csv").open() as file:
        assert next(csv.DictReader(file)).get("seconds", "") == ""
    assert read_results(tmp_path / TIMES).rows[0]["seconds"] == 0.25


def test_verdicts_are_printed_for_machines(tmp_path, command):
    (tmp_path / "transfer.csv").write_bytes((COMMITTED / "transfer.csv").read_bytes())
    result = invoke("transfer", command.split()[-1], "--json", "-o", tmp_path)
    assert result.exit_code == 0, result.output
    verdicts = json.loads(result.stdout)["verdicts"]
    assert [v["claim"]["letter"] for v in verdicts] == ["i", "j"]
    assert [v["outcome"] for v in verdicts] == [HOLDS, HOLDS]
    assert all(check["passed"] in (True, False) for v in verdicts for check in v["checks"])


@pytest.mark.skipif(os.name != "posix", reason="interrupts are sent as signals")
def test_an_interrupted_run_saves_its_table_and_resumes_to_the_same_one(tmp_path):
    def command(folder):
        code = "from sharedspan.cli import main; main()"
        return [sys.executable, "-c", code, "reproduce", "curriculum", "--quick", "-o", str(folder)]

    stopped = subprocess.Popen(
        command(tmp_path / "a"), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    path = tmp_path / "a" / "curriculum.csv"
    deadline = time.monotonic() + 120
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    stopped.send_signal(signal.SIGINT)
    _, error = stopped.communicate(timeout=120)
    assert stopped.returncode == 130, error
    assert "same command again" in error
    assert "Traceback" not in error
    partial = read_results(path)
    planned = CURRICULUM.grid(False, 0)
    per_cell = 5 * 4  # methods, levels and their total
    assert per_cell <= len(partial) < per_cell * len(planned)
    for folder in ("a", "b"):
        done = subprocess.run(
            command(tmp_path / folder), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "beats pooling" in done.stdout
        assert (tmp_path / folder / "curriculum.png").stat().st_size > 10_000
    first, second = (tmp_path / f / "curriculum.csv" for f in "ab")
    assert first.read_bytes() == second.read_bytes()
    assert len(read_results(first)) == per_cell * len(planned)


def test_a_table_is_read_as_it_was_written(tmp_path):
    """Columns without values are left out, and the machine is written where it changes."""
    cell = experiment_named("curriculum").grid(False, 0)[0]
    rows = [cell.row(method="pooled", error=0.25 * i, machine=m) for i, m in enumerate("aabbba")]
    write_results(tmp_path / "t.csv", rows)
    text = (tmp_path / "t.csv").read_text()
    assert text.count(",a\n") == 2
    assert text.count(",b\n") == 1
    assert "tail" not in text
    again = read_results(tmp_path / "t.csv").rows
    assert [(r["machine"], r["error"], r["version"]) for r in again] == [
        (r["machine"], r["error"], r["version"]) for r in rows
    ]
    assert np.isnan(again[0]["tail"])
