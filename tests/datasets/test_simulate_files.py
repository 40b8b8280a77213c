"""Simulated tasks in files have the truth of ``simulate`` for every format and file size."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose, assert_array_equal

import sharedspan as ss
from sharedspan.cli import main
from sharedspan.datasets.simulate_files import simulate_files

pytestmark = pytest.mark.usefixtures("temporary")
SIZE = ("--tasks", 30, "--features", 4, "--rank", 2, "--rows", 20)


def run(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments)])


def test_simulated_files_hold_the_truth_of_simulate_however_they_are_cut(tmp_path):
    options = {"n_tasks": 30, "n_features": 4, "rank": 2, "n_samples": 20, "random_state": 3}
    one = simulate_files(tmp_path / "one.parquet", **options)
    many = simulate_files(tmp_path / "many", **options, rows_per_file=170)
    assert [path.name for path in many.files] == [f"part-0000{i}.parquet" for i in range(4)]
    tables = [pa.concat_tables(pq.read_table(path) for path in w.files) for w in (one, many)]
    assert tables[0].equals(tables[1])
    assert tables[0]["task"].to_pylist() == np.repeat(np.arange(30), 20).tolist()
    sim = ss.simulate(**options)
    for written in (one, many):
        with np.load(written.truth) as truth:
            for name in ("coef", "representation", "task_weights", "intercept", "noise"):
                assert_array_equal(truth[name], getattr(sim, name))
    single = simulate_files(tmp_path / "s.csv", **options, dtype="float32")
    text = pyarrow.csv.read_csv(single.files[0])
    assert_allclose(text["y"].to_numpy(), tables[0]["y"].to_numpy(), rtol=1e-6)


def test_shuffled_rows_are_mixed_over_the_files_and_none_is_lost(tmp_path):
    written = simulate_files(
        tmp_path / "m", n_tasks=50, n_features=3, rank=2, n_samples=np.arange(1, 51), noise=0.0,
        random_state=0, shuffle=True, rows_per_file=400,
    )  # fmt: skip
    tables = [pq.read_table(path) for path in written.files]
    task = np.concatenate([table["task"].to_numpy() for table in tables])
    assert_array_equal(np.bincount(task), np.arange(1, 51))
    assert all(len(np.unique(table["task"].to_numpy())) > 35 for table in tables[:3])
    model = ss.SharedSpanRegressor(rank=2, tol=1e-10).fit_file(
        tmp_path / "m", task="task", target="y"
    )
    with np.load(written.truth) as truth:
        assert_allclose(model.coef_[5:], truth["coef"][5:], atol=1e-6)


@pytest.mark.parametrize(
    ("before", "more", "words"),
    [
        ({}, ("--rank", 9), "rank=9 must be between 1 and"),
        ({}, ("--rows", 0), "'--rows': 0 is not in the range x>=1"),
        ({}, ("--noise", -1), "zero or more"),
        ({}, ("--seed", -1), "'--seed': -1 is not in the range x>=0."),
        ({}, ("--rows-per-file", 0), "must be at least 1"),
        ({"s/part-00000.parquet": "old"}, (), "is not empty.*--overwrite"),
        ({"s/mine.txt": "old"}, ("--overwrite",), "holds mine.txt, which no simulation wrote"),
        ({"s": "old"}, (), "is a file"),
        ({"s.csv": "old"}, ("-o", "s.csv"), "s.csv exists already"),
        ({}, ("-o", "no/s"), "There is no folder"),
    ],
    ids=str,
)
def test_mistakes_of_simulate_exit_with_two_and_write_nothing(before, more, words, tmp_path,
                                                              monkeypatch):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name, text in before.items():
        path = Path(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    done = run("simulate", *SIZE, "-o", "s", *more)
    assert done.exit_code == 2, done.output
    assert len(done.output.strip().splitlines()) == 1
    assert re.search(words, done.output)
    files = {str(p): p.read_text() for p in Path().rglob("*") if p.is_file()}
    assert files == before


def test_overwrite_replaces_an_earlier_simulation_whole(tmp_path):
    folder = tmp_path / "s"
    assert run("simulate", *SIZE, "--rows-per-file", 100, "-o", folder).exit_code == 0
    assert len(list(folder.iterdir())) == 7
    assert run("simulate", *SIZE, "--csv", "--overwrite", "-o", folder).exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["part-00000.csv", "truth.npz"]
