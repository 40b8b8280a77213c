"""Every Python block of README and docs runs as printed; the README holds two commands."""

import re
from pathlib import Path

import pytest

import sharedspan as ss
from sharedspan.solvers import SOLVERS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language):
    return [
        pytest.param(code, id=f"{page.name}-{i}")
        for page in PAGES
        for i, (kind, code) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")))
        if kind == language
    ]


@pytest.mark.filterwarnings("ignore::UserWarning:distributed")  # of ports that are taken
@pytest.mark.parametrize("code", blocks("python"))
def test_code_in_the_documentation_runs(code, monkeypatch, capsys):
    for name in SOLVERS:
        monkeypatch.setitem(SOLVERS, name, SOLVERS[name])  # restores what a block registers
    if "dask" in code:
        pytest.importorskip("distributed")
    before = set(SOLVERS)
    assert exec(compile(code, "documentation", "exec"), {"__name__": "__main__"}) is None
    added = set(SOLVERS) - before
    sim = ss.simulate(n_tasks=20, n_features=6, rank=2, n_samples=30, random_state=0)
    for name in added:
        model = ss.SharedSpanRegressor(rank=2, solver=name, random_state=0)
        assert model.fit(sim.X, sim.y, task=sim.task).converged_
        del SOLVERS[name]


def test_the_readme_keeps_its_promise(capsys):
    code = blocks("python")[0].values[0]
    exec(code, {})
    rank, gain, *_ = capsys.readouterr().out.splitlines()
    assert rank == "3"
    assert float(gain) > 5


def test_the_readme_holds_exactly_two_set_up_commands():
    commands = [line for block in blocks("sh") for line in block.values[0].splitlines()]
    assert len(commands) == 2
    assert commands[0].endswith("sharedspan demo")
    assert commands[1].endswith("pytest")
