"""The option that names the column of the tasks: also ``--group``, and given once."""

import pytest
from click.testing import CliRunner

import sharedspan as ss
from sharedspan.cli import main


def run(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments)])


@pytest.fixture
def table(tmp_path):
    sim = ss.simulate(n_tasks=8, n_features=2, rank=1, n_samples=12, random_state=0)
    lines = [f"{t},{a},{b},{y}" for t, (a, b), y in zip(sim.task, sim.X, sim.y, strict=True)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["school,a,b,y", *lines]) + "\n", "utf-8")
    return path


def test_group_is_another_name_of_the_option_task(table, tmp_path):
    model, page = tmp_path / "m.span", tmp_path / "r.html"
    for command in (
        ("fit", table, "--group", "school", "--target", "y", "-o", model),
        ("compare", table, "--group", "school", "--target", "y", "--repeats", 2),
        ("report", model, "--data", table, "--group", "school", "-o", page),
        ("predict", model, table, "--group", "school", "-o", tmp_path / "p.csv"),
        ("adapt", model, table, "--group", "school", "-o", tmp_path / "n.span"),
    ):
        done = run(*command)
        assert done.exit_code == 0, done.output
        assert "--task, --group COL" in run(command[0], "--help").output


@pytest.mark.parametrize("more", ["--task", "--group"])
def test_two_columns_of_tasks_are_refused_and_a_formula_is_named(table, tmp_path, more):
    columns = ("--task", "school", more, "a", "--target", "y")
    done = run("fit", table, *columns, "-o", tmp_path / "m.span")
    assert done.exit_code == 2
    assert "given twice" in done.output
    assert "sharedspan fit TABLE 'y ~ x + (1 | school/a)'" in done.output


def test_two_targets_are_refused(table, tmp_path):
    columns = ("--task", "school", "--target", "y", "--target", "a")
    done = run("fit", table, *columns, "-o", tmp_path / "m.span")
    assert done.exit_code == 2
    assert "--target was given twice" in done.output
