"""Small changes of the source that tests must notice; benchmarks/trust/mutation.py has the many."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

if os.name == "nt":
    pytest.skip("processes are forked", allow_module_level=True)

from benchmarks.trust import coverage, mutation
from benchmarks.trust.mutants import mutants, mutated

ROOT = Path(__file__).parents[2]
SOURCE = '''\
"""A module with 1 docstring."""
from typing import Any
LIMIT = 3

def half(x: "int | None", step: int = 2, *, quiet: bool = False) -> "list[2]":
    """Half of 1 thing."""
    if x < 0 or not quiet:
        raise ValueError(f"x={x + 1} is below 0")
    x += 1
    check(x)
    return x[1:] + x[:step]

@njit
def compiled(x):
    return x + 1
'''


def changes():
    return [(mutant.line, mutant.change) for mutant in mutants("a.py", SOURCE)]


def test_mutants_of_a_module_are_those_of_its_operators():
    assert sorted(changes()) == sorted([
        (3, "3 -> 4"), (5, "default 2 -> 3"), (5, "default False -> True"), (7, "Or -> And"),
        (7, "Lt -> LtE"), (7, "Lt -> GtE"), (7, "0 -> 1"), (7, "without Not"), (9, "Add -> Sub"),
        (9, "statement removed"), (9, "1 -> 2"), (10, "statement removed"), (11, "Add -> Sub"),
        (11, "the negative returned"), (11, "1 -> 2"), (11, "slice without the last"),
        (11, "slice from 1"), (11, "slice to one earlier"),
    ])  # fmt: skip


def test_a_mutant_differs_from_the_source_in_one_statement():
    whole = ast.unparse(ast.parse(SOURCE)).splitlines()
    for mutant in mutants("a.py", SOURCE):
        tree, text = mutated(SOURCE, mutant)
        lines = ast.unparse(tree).splitlines()
        assert len(lines) == len(whole)
        assert sum(a != b for a, b in zip(lines, whole, strict=True)) == 1, mutant
        assert text.splitlines()[0] in "\n".join(lines)


def test_the_key_of_a_mutant_does_not_depend_on_lines_above_it():
    moved = SOURCE.replace("LIMIT", "\n\nLIMIT")
    assert [m.key for m in mutants("a.py", SOURCE)] == [m.key for m in mutants("a.py", moved)]


def test_tests_are_of_many_functions_within_a_budget():
    seconds = {"a::slow": 5.0, "a::quick": 1.0, "b::slow": 6.0, "c::much": 100.0}
    assert mutation.selected(seconds, seconds) == ["a::quick", "a::slow", "b::slow"]
    assert mutation.selected({"c::much"}, seconds) == ["c::much"]
    many = {f"a::one[{n}]": 0.001 for n in range(100)} | {"b::other": 3.0, "c::mine": 38.0}
    chosen = mutation.selected(many, many)
    assert len(chosen) == mutation.MOST_TESTS
    assert chosen[-1] == "b::other"
    assert mutation.selected(many, many, ("c",))[-1] == "c::mine"


def test_tests_of_formulas_notice_changes_of_the_parser(tmp_path, monkeypatch):
    map_, out = tmp_path / "lines.json", tmp_path / "mutants.jsonl"
    script = (
        "import json, sys; from pathlib import Path\n"
        "from benchmarks.trust import coverage, mutation\n"
        "mutation.WORK = Path(sys.argv[3]); root = Path.cwd()\n"
        "coverage.measure(['tests/formula/test_parse.py'], sys.argv[1])\n"
    )
    command = [sys.executable, "-c", script, str(map_), str(out), str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    known = json.loads(map_.read_text())
    for file in known["files"]:
        if Path(file).name not in ("parse.py", "syntax.py"):
            known["files"][file]["run"] = {}
    map_.write_text(json.dumps(known))
    script = script.rpartition("coverage.measure")[0] + (
        "known = json.loads(Path(sys.argv[1]).read_text())\n"
        "mutation.run_sample(known, sys.argv[2], size=8, root=root)\n"
    )
    for _ in range(2):  # the second run has nothing left to do
        command[2] = script
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    results, _ = mutation.read_results(out)
    assert len(results) == len(out.read_text().splitlines()) - 1 == 8
    killed = [one for one in results.values() if one["outcome"] == "killed"]
    assert len(killed) >= 6
    assert all(one["by"].startswith("tests/formula/test_parse.py") for one in killed)
    assert mutation.summary(results)[0].figure.startswith(f"{len(killed)} of 8: ")


def test_every_reason_of_a_survivor_is_a_sentence_about_a_line_that_exists():
    for key, reason in mutation.read_reasons().items():
        file, _, source, _, _ = key
        assert source in (ROOT / file).read_text(), key
        assert reason.endswith(".")


def test_packages_whose_lines_are_counted_exist():
    assert all(group for group in coverage.files(ROOT).values())
    assert {path for path in coverage.LEFT_OUT if not (ROOT / path).exists()} == set()
