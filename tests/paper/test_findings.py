"""Findings beyond the paper: known answers, sentences that follow their tables, and the command."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose

from sharedspan.cli import main
from sharedspan.diagnosis.text import listed
from sharedspan.paper import EXPERIMENTS, FINDINGS, experiment_named
from sharedspan.paper.drawing import STYLES, floor_error
from sharedspan.paper.experiment import Cell, run_cell
from sharedspan.paper.findings import conditioning, covariances, misspecified, phase, speed
from sharedspan.paper.findings.page import findings_page, paragraphs, seeds_text
from sharedspan.paper.problem import SimulatedProblem
from sharedspan.paper.runner import run_findings
from sharedspan.paper.table import ResultTable, read_results, result_row, spread, write_results
from sharedspan.report.figures import new_panel
from sharedspan.solvers.tpgd import phase_one_length, start_scale, step_sizes

COMMITTED = Path(__file__).parents[2] / "docs" / "reproduction"
SMALL = Cell("covariances", "30", 8, 12, 2, 40, 0)


@pytest.fixture(scope="module")
def committed():
    return {name: read_results(COMMITTED / f"{name}.csv") for name in FINDINGS}


# Known answers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_with_hardly_any_noise_and_more_rows_than_features_every_run_succeeds(seed):
    cell = Cell("phase", phase.ROWS, 30, 30, 2, 120, seed, noise=1e-4)
    rows = phase.successes(ResultTable(run_cell(cell)))
    assert rows.values("method") == ["TPGD", phase.SEARCH, phase.TRUTH]
    assert rows.column("error").all()


def test_without_noise_the_error_vanishes_and_with_too_few_rows_it_does_not():
    cell = Cell("phase", phase.ROWS, 10, 12, 2, 40, 0, noise=0.0)
    assert max(row["error"] for row in run_cell(cell)) < 1e-10
    fewer = dataclasses.replace(cell, N=2)  # 24 rows for 40 parameters
    assert run_cell(fewer)[0]["error"] > 1e-2


def test_a_tiny_start_is_not_taken_for_the_end():
    cell = Cell("phase", phase.START, 10, 12, 2, 200, 0, noise=1e-3, kappa=30.0)
    rows = {row["rate"]: row for row in run_cell(cell)}
    assert rows[1e-10]["error"] <= 1.01 * rows[1e-2]["error"]
    assert rows[1e-10]["iteration"] > rows[1e-2]["iteration"]


def test_whitening_changes_the_units_and_not_the_error():
    problem = covariances.differing_covariances(SMALL, 30.0)
    white = problem.whitened()
    assert_allclose(white.sim.X.T @ white.sim.X / len(white.sim.X), np.eye(8), atol=1e-10)
    assert_allclose(white.sim.X @ white.sim.coef.T, problem.sim.X @ problem.sim.coef.T, atol=1e-10)
    assert white.error(white.V) == problem.error(problem.V) == 0
    assert_allclose(white.erm, problem.erm, rtol=1e-4)


def test_the_error_is_the_excess_risk_of_each_tasks_own_features():
    problem = covariances.differing_covariances(dataclasses.replace(SMALL, N=4000), 30.0)
    sim, V = problem.sim, 0.5 * problem.V
    gap = np.einsum("ij,ji->i", sim.X, (V - problem.V)[:, sim.task])
    assert_allclose(problem.error(V), np.mean(gap**2), rtol=0.05)
    isotropic = covariances.ChangedProblem(SMALL, sim, np.eye(8))
    assert_allclose(isotropic.error(V), SimulatedProblem(SMALL).error(V), rtol=1e-12)


def test_our_reading_of_dfw_recovers_coefficients_without_noise():
    cell = dataclasses.replace(SMALL, noise=0.0)
    problem = covariances.differing_covariances(cell, 10.0)
    for split in (True, False):
        assert problem.error(covariances.dfw(problem, 300, split)) < 1e-10


def test_batched_least_squares_is_that_of_numpy(rng):
    X, y = rng.standard_normal((3, 9, 4)), rng.standard_normal((3, 9))
    expected = [np.linalg.lstsq(a, b, rcond=None)[0] for a, b in zip(X, y, strict=True)]
    assert_allclose(covariances.fit_tasks(X, y), expected, atol=1e-12)


def test_scenarios_change_what_they_name():
    cells = {part: Cell("misspecified", part, 8, 20, 2, 200, 0) for part in misspecified.SCENARIOS}
    made = {part: misspecified.scenario(cell) for part, cell in cells.items()}
    assert_allclose(
        misspecified.known_floor(made[misspecified.PLAIN]), floor_error(cells["as assumed"].row())
    )
    sizes = made[misspecified.UNEQUAL].sim.n_samples
    assert sizes.max() > 20 * sizes.min()
    assert_allclose(sizes.mean(), 200, rtol=0.01)
    assert made[misspecified.OUTLIERS].sim.is_outlier.sum() == 2
    rows = made[misspecified.SERIAL].sim.X.reshape(20, 200, 8)
    assert_allclose(np.mean(rows[:, 1:] * rows[:, :-1]), 0.8, atol=0.03)
    assert_allclose(np.mean(rows**2), 1.0, atol=0.05)
    heavy = made[misspecified.NOISE].sim
    noise = heavy.y - np.einsum("ij,ij->i", heavy.X, heavy.coef[heavy.task])
    assert np.mean(noise**4) > 4 * np.mean(noise**2) ** 2
    correlated = made[misspecified.CORRELATED]
    covariance = correlated.roots[0] @ correlated.roots[0].T
    assert_allclose(np.linalg.cond(covariance), 100)
    assert_allclose(np.cov(correlated.sim.X.T), covariance, atol=0.2)


def test_an_exact_power_of_kappa_is_read_from_the_counts():
    table = ResultTable(
        result_row(d=40, T=40, k=4, N=120, method=method, kappa=kappa, seed=seed,
                   iteration=round(scale * kappa**power))
        for method, scale, power in (("TPGD", 1000, 1), (speed.PAPER_TPGD, 100, 6), ("flat", 5, 0))
        for kappa in (1.0, 2.0, 4.0, 8.0) for seed in range(2)
    )  # fmt: skip
    powers = [speed.power_of_kappa(rows).value for _, rows in table.groups("method")]
    assert_allclose(powers, [1, 6, 0], atol=1e-3)
    text = speed.Speed().paragraph(table)
    assert "grow like κ^1.00" in text
    assert "not needed in these runs; a proof is another matter" in text
    assert "The iterations of flat are nearly independent of κ (a power of at most 0.25)." in text


@pytest.mark.parametrize("kappa", [1.0, 1.5, 5.0])
def test_the_length_of_the_papers_phase_one_follows_from_a_row(kappa):
    cell = Cell("speed", "", 40, 40, 4, 120, 0, noise=0.01, kappa=kappa)
    s = SimulatedProblem(cell).sim.singular_values
    eta, _ = step_sizes(s, "theory", known=True)
    expected = phase_one_length(s, eta, start_scale(s, None), cell.d)
    assert speed.paper_phase_one(cell.row()) == pytest.approx(expected, abs=1)


def test_rows_of_theorem_1_follow_from_a_row():
    cell = Cell("conditioning", "", 8, 10, 2, 40, 0, noise=0.3, kappa=3.0)
    (row,) = run_cell(cell)
    s = SimulatedProblem(cell).sim.singular_values
    expected = 0.3**2 * (8 + 10) * 2 * 3.0**4 / s[-1] ** 2
    assert_allclose(conditioning.rows_asked(row), expected, rtol=1e-6)


def test_the_boundary_is_drawn_where_the_grid_is():
    table = ResultTable(
        result_row(rate=x, k=k, error=1.0) for x in (0.1, 0.5, 1.0, 4.0) for k in (1, 2, 8)
    )
    place = phase.draw_map(new_panel(), table, "rate", "k")
    assert_allclose(place([0.1, 0.5, 1.0, 2.0, 4.0], "rate"), [0, 1, 2, 2.5, 3])
    assert_allclose(place([0.5, 1, 2, 4, 8], "k"), [-1, 0, 1, 1.5, 2])


def test_texts_of_ranges_and_lists():
    assert spread(iter([2.0, 1.0])) == "1.00 to 2.00"
    assert spread([1.0, 1.001]) == "1.00"
    assert listed("abc") == "a, b and c"
    assert listed("a") == "a"


# Sentences follow their tables --------------------------------------------------------------------


def changed(table, column, factor):
    return ResultTable(row | {column: type(row[column])(row[column] * factor(row))}
                       for row in table.rows)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "column", "factor", "says"),
    [
        ("phase", "error", lambda r: 99.0 if r["part"] == phase.START else 1.0,
         "No size of the start succeeds in every run"),
        ("phase", "error", lambda r: 99.0 if r["part"] == phase.ROWS else 1.0,
         "rows per task or more, 0 of"),
        ("phase", "error", lambda r: 1e-9 if r["part"] == phase.ROWS else 1.0,
         "No run of TPGD fails"),
        ("speed", "iteration", lambda r: r["kappa"] if r["method"] == "TPGD" else 1.0,
         "a step that shrinks has its reason"),
        ("speed", "iteration", lambda r: r["kappa"],
         "No method's iterations are nearly independent of κ"),
        ("speed", "iteration", lambda r: 2.0 if r["method"] == "GD + Loss 1" else 1.0,
         "Loss 1, which is TPGD's own Phase I, in 0 of 360 runs"),
        ("speed", "iteration", lambda r: 9.0 if r["method"] == speed.PAPER_TPGD else 1.0,
         "before Phase II begins in 0 of 200 runs."),
        ("misspecified", "error", lambda r: 99.0 if r["method"] == "adaptive" else 1.0,
         "at most 1.1 times the lowest error in 0 of 9"),
        ("misspecified", "error", lambda r: 10.0 if r["method"] == "ARMUL" else 1.0,
         "the errors of TPGD and ARMUL are 1.04 and 10.5"),
        ("misspecified", "error", lambda r: 9.0 if r["part"] != "as assumed" else 1.0,
         "by more than a quarter in every scenario"),
        ("misspecified", "error", lambda r: 9.0 if "early" in r["method"] else 1.0,
         "stopping early does not help"),
        ("misspecified", "error", lambda r: 2.0, "No median is below the floor"),
        ("conditioning", "error", lambda r: r["kappa"] ** 0.2,
         "independent of κ at no noise level"),
        ("conditioning", "error", lambda r: 2.0, "in part due to the algorithm"),
        ("conditioning", "rate", lambda r: 1e6, "960 of 960 runs meet this condition, and"),
        ("conditioning", "rate", lambda r: 1e-6, " 0 of 960 runs meet this condition."),
        ("covariances", "error", lambda r: 5.0 if r["setting"] == "as given" else 1.0,
         "Whitening lowers the error of TPGD and AltMinGD"),
        ("covariances", "error", lambda r: 5.0 if r["method"] == "TPGD" else 1.0,
         "TPGD on whitened features is 5.00 times the lowest"),
        ("covariances", "iteration", lambda r: 9.0 if r["setting"] == "whitened" else 1.0,
         "covariance does not save iterations"),
        ("covariances", "error", lambda r: 0.1 if "DFW" in r["method"] else 1.0,
         "DFW has the lowest error of all methods"),
    ],
)  # fmt: skip
def test_a_changed_table_changes_its_paragraph(name, column, factor, says, committed):
    finding = experiment_named(name)
    assert says not in finding.paragraph(committed[name])
    assert says in finding.paragraph(changed(committed[name], column, factor))


def test_the_table_of_medians_follows_the_table(committed):
    def rows(table):
        return misspecified.Misspecified().medians(table)[4:]

    table = committed["misspecified"]
    slower = changed(table, "error", lambda r: 10.0 if r["method"] == "ARMUL" else 1.0)
    assert len(rows(table)) == len(misspecified.SCENARIOS)
    best = "1.04 (rank by cross-validation)"
    assert rows(table)[1] == f"| rank 2 instead of 3 | 1.04 | 33.10 | 5.18 | {best} |"
    assert rows(slower)[1].startswith("| rank 2 instead of 3 | 1.04 | 33.10 | 51.7")
    better = changed(table, "error", lambda r: 0.1 if r["method"] == misspecified.TOLD else 1.0)
    assert rows(better)[0].endswith("| 0.10 (TPGD, rank given) |")


@pytest.mark.parametrize("name", FINDINGS)
def test_every_number_of_a_paragraph_depends_on_the_table(name, committed):
    """Errors that differ by seed leave no number of the sentences as it was by accident."""
    finding = experiment_named(name)
    column = "iteration" if name == "speed" else "error"
    other = changed(committed[name], column, lambda r: 3.0 + 0.5 * r["kappa"])
    assert finding.paragraph(other) != finding.paragraph(committed[name])
    assert finding.draw(committed[name]).axes


def test_seeds_are_told_for_each_part_where_they_differ(committed):
    assert seeds_text(committed["speed"]) == "20 seeds"
    assert seeds_text(committed["speed"].where(seed=0)) == "one seed"
    expected = "50 seeds for rows and rank and 10 for condition number and start"
    assert seeds_text(committed["phase"]) == expected


@pytest.mark.parametrize("name", FINDINGS)
def test_the_colour_of_altmin_is_that_of_no_other_curve(name, committed):
    color, _ = STYLES["AltMinGD"]
    figure = experiment_named(name).draw(committed[name])
    drawn = [line for panel in figure.axes for line in panel.lines if line.get_color() == color]
    assert all(line.get_label().startswith("AltMinGD") for line in drawn)
    assert bool(drawn) == (name == "covariances")


def test_a_curve_that_ends_in_phase_one_says_so(committed):
    def labels(table):
        return [line.get_label() for line in speed.Speed().draw(table).axes[0].lines]

    table = committed["speed"]
    assert f"{speed.PAPER_TPGD} (in Phase I)" in labels(table)
    slower = changed(table, "iteration", lambda r: 3.0 if r["method"] == speed.PAPER_TPGD else 1.0)
    assert speed.PAPER_TPGD in labels(slower)


# The committed run and the command ----------------------------------------------------------------


def test_the_committed_page_is_made_of_the_committed_tables(committed):
    page = (COMMITTED / "findings.md").read_text(encoding="utf-8")
    command = page.split("Generated by `")[1].split("`")[0]
    assert page == findings_page(committed, command)
    full = command.endswith("--full")
    for name, table in committed.items():
        keys = {cell.key for cell in experiment_named(name).grid(full, 0)}
        assert {tuple(row[n] for n in ("part", "k", "N", "noise", "kappa", "seed"))
                for row in table.rows} == {(k[1], *k[4:9]) for k in keys}  # fmt: skip
        assert (COMMITTED / f"{name}.png").stat().st_size > 20_000


def test_cells_resume_to_the_same_table(tmp_path, monkeypatch):
    def cells(self, full, seeds):
        return [Cell("conditioning", "", 8, 10, 2, 40, seed, kappa=kappa)
                for seed in (0, 1) for kappa in (1.0, 3.0)]  # fmt: skip

    finding = experiment_named("conditioning")
    monkeypatch.setattr(type(finding), "cells", cells)
    planned = finding.grid(False, 0)
    whole = [row for cell in planned for row in run_cell(cell)]
    write_results(tmp_path / "conditioning.csv", whole[:3])
    answers = run_findings(["conditioning"], full=False, seed=0, folder=tmp_path, command="again")
    assert list(map(repr, read_results(tmp_path / "conditioning.csv").rows)) == list(
        map(repr, whole)
    )
    assert answers == paragraphs({"conditioning": ResultTable(whole)})
    assert answers["conditioning"] in (tmp_path / "findings.md").read_text(encoding="utf-8")
    assert not (tmp_path / "results.md").exists()


def test_the_command_prints_findings_and_leaves_the_papers_page_alone(tmp_path, committed):
    full = ["--full"] if "--full`" in (COMMITTED / "findings.md").read_text("utf-8") else []
    for name in FINDINGS:
        (tmp_path / f"{name}.csv").write_bytes((COMMITTED / f"{name}.csv").read_bytes())
    runner = CliRunner()
    result = runner.invoke(main, ["reproduce", "findings", *full, "--json", "-o", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["findings"] == paragraphs(committed)
    result = runner.invoke(main, ["reproduce", "speed", *full, "-o", str(tmp_path)])
    assert "grow with these fitted powers of κ" in result.output
    assert not (tmp_path / "results.md").exists()
    assert not set(FINDINGS) & set(EXPERIMENTS)
