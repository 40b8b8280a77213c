"""Hostile files, formulas, names and labels: a short run of `python -m benchmarks.trust fuzz`."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import sharedspan as ss
from benchmarks.trust import fuzz
from sharedspan.cli import main
from sharedspan.cli.output import printable
from sharedspan.inputs.text_format import TextFormat
from stored_files import GOLDEN, golden_problem, parts, sealed


@pytest.mark.parametrize("group", fuzz.GROUPS, ids=lambda group: group.__name__)
def test_every_case_ends_in_a_right_result_or_in_an_error_of_ours(group):
    _, n = fuzz.GROUPS[group]
    ends = fuzz.run_group(group, n, seed=0)
    assert ends.failures == []
    assert ends.cases == n


def test_no_source_runs_text_loads_pickles_or_starts_a_shell_but_in_named_places():
    assert fuzz.code_that_runs_text().keys() == fuzz.ALLOWED.keys()


@pytest.mark.parametrize(
    "line",
    ["import pickle", "from marshal import loads", "eval('1')", "os.system('ls')", "f.eval('x')",
     "np.load('x')", "run('ls', shell=True)", "import yaml", "joblib.load('x')", "exec(text)",
     "__import__('os')", "from subprocess import run", "g(allow_pickle=True)"],
)  # fmt: skip
def test_the_walk_over_the_source_finds_code_that_runs_text(line, tmp_path):
    (tmp_path / "module.py").write_text(f"def f():\n    {line}\n")
    assert fuzz.code_that_runs_text(tmp_path)


def test_an_error_that_is_not_ours_is_told_from_one_that_is():
    def raised(work):
        with pytest.raises(BaseException) as caught:
            work()
        return fuzz.fault_of(caught.value)

    assert raised(lambda: ss.simulate(n_tasks=0)) is None
    assert raised(lambda: np.linalg.inv(np.zeros((2, 2)))) is not None
    assert raised(lambda: np.ones(2) + np.ones(3)) is not None
    assert raised(lambda: "\ud800".encode()) is not None
    assert raised(lambda: [][1]) is not None

    def forever():
        with fuzz.time_limit(0.05):
            while True:
                pass

    assert raised(forever) is not None


# ---- what was found ------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("folder", ["y=5", "x=5", "g=5", "Y=5", "extra=1", "~", "file:", "{a,b}"])
def test_the_name_of_a_folder_never_changes_what_is_read(folder, ending, tmp_path, monkeypatch):
    """DuckDB takes y=5 for a column y whose values are 5, in place of the file's own."""
    frame = fuzz.example_frame()
    (tmp_path / folder).mkdir()
    with open(tmp_path / folder / f"t.{ending}", "wb") as file:
        if ending == "csv":
            frame.to_csv(file, index=False)
        else:
            pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), file)
    monkeypatch.chdir(tmp_path)
    expected = ss.PerTaskRegressor(alpha=0.1).fit(frame[["x", "z"]], frame["y"], task=frame["g"])
    model = fuzz.fit_table(f"{folder}/t.{ending}")
    assert model.coef_names_.tolist() == ["x", "z"]
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-12)


def test_a_workbook_without_a_sheet_is_refused(tmp_path):
    (tmp_path / "t.xlsx").write_bytes(fuzz.workbook())
    with pytest.raises(ValueError, match="is a workbook without a sheet"):
        fuzz.fit_table(tmp_path / "t.xlsx")


@pytest.mark.parametrize("file", fuzz.golden("*.span"), ids=lambda file: file.path.stem)
def test_a_file_of_a_released_version_has_a_summary_and_is_saved_again(file, tmp_path):
    """Which the changed files of the suite are asked for: it does not refuse those unchanged."""
    fuzz.use_model(file.content, tmp_path, fuzz.write_golden_table(tmp_path / "golden.csv"))


def changed_model(name, tmp_path, change):
    head, tree, numbers = parts((GOLDEN / f"{name}.span").read_bytes())
    change(tree)
    (tmp_path / "m.span").write_bytes(sealed(head, tree, numbers))
    return tmp_path / "m.span"


@pytest.mark.parametrize("address", ["tcp://192.0.2.1:8786", "192.0.2.1:8786"])
def test_a_model_file_cannot_name_the_scheduler_that_a_later_fit_connects_to(address, tmp_path):
    path = changed_model("PooledRegressor-2", tmp_path,
                         lambda tree: tree["parameters"].update(engine=address))  # fmt: skip
    assert ss.load(path).engine == "dask"
    X, y, task = golden_problem()
    model = ss.PooledRegressor().fit(X, y, task=task)
    model.engine = ss.DaskEngine(address, shards=3)
    model.save(tmp_path / "own.span")
    assert ss.load(tmp_path / "own.span").engine == ss.DaskEngine(None, shards=3)
    model.engine = "local"
    model.save(tmp_path / "own.span")
    assert ss.load(tmp_path / "own.span").engine == "local"


@pytest.mark.parametrize("name", ["AdaptiveSpanClassifier-2", "SharedSpanClassifier-2"])
def test_a_classifier_of_other_than_two_classes_is_refused_in_a_file(name, tmp_path):
    for classes in (["no"], ["no", "perhaps", "yes"]):
        path = changed_model(name, tmp_path,
                             lambda tree, c=classes: tree["fitted"].update(
                                 classes_={"<strings>": c}))  # fmt: skip
        with pytest.raises(ss.ModelFileError, match="damaged"):
            ss.load(path)


def test_marks_of_numbers_from_a_file_cannot_be_regular_expressions():
    for marks in ({"decimal": "](a+)+$["}, {"thousands": "(a+)+$"}, {"signs": (7,)}):
        with pytest.raises(ValueError):
            TextFormat(**marks)


def test_an_integer_that_no_float_holds_is_refused_in_a_file(tmp_path):
    path = changed_model("AdaptiveSpanRegressor-negative_binomial-2", tmp_path,
                         lambda tree: tree["fitted"].update(dispersion_=10**400))  # fmt: skip
    with pytest.raises(ss.ModelFileError, match="damaged"):
        ss.load(path)


@pytest.mark.parametrize(
    "change",
    [{"iteration": "2"}, {"iteration": 1}, {"slack": "0"}, {"damping": None}, {"n_halved": -1},
     {"tail": [1, 0.0]}, {"ending": 7}, {"converged": "no"}, {"memory": [[], []]},
     {"rng": {"start": {}}}],
    ids=str,
)  # fmt: skip
def test_a_changed_state_of_a_checkpoint_is_refused(change, tmp_path):
    resumed_with(tmp_path, lambda tree: tree["run"].update(change))


@pytest.mark.parametrize(
    "change", [{"round": 7}, {"round": "0"}, {"rank": 3}, {"rank": None}, {"noise": 1.0}], ids=str
)
def test_a_changed_turn_of_a_checkpoint_is_refused(change, tmp_path):
    resumed_with(tmp_path, lambda tree: tree["caller"].update(change))


def resumed_with(tmp_path, change):
    head, tree, numbers = parts((GOLDEN / "SharedSpanRegressor-1.checkpoint").read_bytes())
    before = json.dumps(tree)
    change(tree)
    assert json.dumps(tree) != before
    (tmp_path / "c").write_bytes(sealed(head, tree, numbers))
    X, y, task = golden_problem()
    model = ss.SharedSpanRegressor(solver="scaled_gd_anderson", tol=1e-12, random_state=0)
    with pytest.raises(ss.CheckpointError):
        model.fit(X, y, task=task, resume=tmp_path / "c")


def test_line_ends_in_names_are_escaped_where_a_database_has_no_others():
    names = {"task": "a\nb", "target": "y\r", "table": ["t"]}
    sql = ss.statistics_query(["x`\\\n"], dialect="bigquery", **names)
    assert "`a\\nb`" in sql
    assert "`y\\r`" in sql
    assert "`x\\`\\\\\\n`" in sql
    with pytest.raises(ValueError, match="not a name"):
        ss.statistics_query(["\ud800"], task="a", target="y", table="t")


def test_names_and_labels_cannot_command_a_terminal(tmp_path):
    assert printable("a\x1b[2J\x9b\u202e\ud800\u2066\u2028") == (
        r"a\x1b[2J\x9b\u202e\ud800\u2066\u2028"
    )
    kept = "Zürich\n\tשלום 👩\u200d👧, 3\u202f000"
    assert printable(kept) == kept
    frame = fuzz.example_frame().rename(columns={"x": "\x1b[31mx", "g": "\x1b]0;t\x07g"})
    frame["\x1b]0;t\x07g"] = "\x1b[5m" + frame["\x1b]0;t\x07g"]
    folder = tmp_path / "f\x1b[2J"
    folder.mkdir()
    frame.to_csv(folder / "t.csv", index=False)
    given = [str(folder / "t.csv"), "--task", "\x1b]0;t\x07g", "--target", "y"]
    for command in (
        ["fit", *given, "-o", str(tmp_path / "m.span")],
        ["compare", *given],
        ["predict", str(tmp_path / "m.span"), str(folder / "none.csv"), "-o", "p.csv"],
        ["fit", *given[:-1], "\x1b[2Jnone", "-o", str(tmp_path / "n.span")],
    ):
        said = CliRunner().invoke(main, command, color=True).output
        assert said
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", said), command[0]
