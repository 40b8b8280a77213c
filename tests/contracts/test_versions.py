"""Environments of oldest and newest versions, and the map of lines that tests run."""

import sys
import tomllib

from benchmarks.trust import coverage, versions


def test_every_dependency_has_an_oldest_version():
    project = tomllib.loads((versions.ROOT / "pyproject.toml").read_text())["project"]
    known = versions.bounds()
    for requirement in project["dependencies"]:
        assert any(requirement == f"{name}>={known[name]}" for name in known), requirement
    assert set(known) >= {"dask", "distributed", "onnx", "python-calamine"}


def test_environments_hold_all_or_none_or_duckdb_at_the_oldest_version():
    pins = {each.name: each.pins({"duckdb": "1.5", "numpy": "2.0"}) for each in
            versions.ENVIRONMENTS}  # fmt: skip
    assert pins == {
        "oldest": ["duckdb==1.5", "numpy==2.0"], "newest": [], "duckdb": ["duckdb==1.5"],
    }  # fmt: skip


def test_the_python_that_runs_is_found_and_another_version_is_not_taken_for_it():
    running = ".".join(map(str, sys.version_info[:2]))
    assert versions.answers(sys.executable, running)
    assert not versions.answers(sys.executable, "3.99")


def test_tests_of_the_environments_exist():
    assert all((versions.ROOT / path).exists() for path in (*versions.TESTS, *versions.LEFT_OUT))


def some_map(*tests, **run):
    return {
        "tests": [{"name": name, "passed": True, "cpu": 1.0} for name in tests],
        "files": {"a.py": {"statements": [1, 2, 3], "run": run["run"]}},
    }


def test_new_tests_are_added_to_the_map_under_their_own_numbers():
    known = some_map("t::a", "t::b", run={"1": [0, 1], "2": [1]})
    new = some_map("t::c", "t::b", run={"2": [0], "3": [0, 1]})
    both = coverage.merged(known, new)
    assert [test["name"] for test in both["tests"]] == ["t::a", "t::b", "t::c"]
    assert both["files"]["a.py"]["run"] == {"1": [0, 1], "2": [1, 2], "3": [1, 2]}
    assert coverage.missing(both, "a.py") == ""
    assert coverage.missing(known | {"files": some_map(run={"2": []})["files"]}, "a.py") == "1, 3"
