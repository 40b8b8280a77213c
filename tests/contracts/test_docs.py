"""Code of README and docs runs as printed; symbols, names, links and gallery are up to date."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import sharedspan as ss
from sharedspan.solvers import SOLVERS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MADE_BY_THE_BUILD = {"_build", "gallery", "generated"}
PAGES = [
    ROOT / "README.md",
    *(
        page
        for page in sorted(DOCS.rglob("*.md"))
        if page.relative_to(DOCS).parts[0] not in MADE_BY_THE_BUILD
    ),
]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```(?:bash|sh)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def blocks(language, pages=PAGES):
    return [
        pytest.param(code, id=f"{page.name}-{i}")
        for page in pages
        for i, (kind, code) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")))
        if kind == language
    ]


@pytest.mark.filterwarnings("ignore::UserWarning:distributed")  # about ports in use
@pytest.mark.parametrize("code", blocks("python"))
def test_code_in_the_documentation_runs(code, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in SOLVERS:
        monkeypatch.setitem(SOLVERS, name, SOLVERS[name])  # restores the registry after a block
    for name, package in (("dask", "distributed"), ("onnx", "onnx"), ("onnx", "onnxruntime")):
        if name in code:
            pytest.importorskip(package)
    before = set(SOLVERS)
    try:
        exec(compile(code, "documentation", "exec"), {"__name__": "__main__"})
        for name in set(SOLVERS) - before:
            assert_converges_and_resumes(name, tmp_path / "fit.checkpoint")
    finally:
        for name in set(SOLVERS) - before:
            del SOLVERS[name]


def assert_converges_and_resumes(solver, path):
    sim = ss.simulate(n_tasks=20, n_features=6, rank=2, n_samples=30, random_state=0)
    model = ss.SharedSpanRegressor(rank=2, solver=solver, random_state=0)
    whole = model.fit(sim.X, sim.y, task=sim.task).coef_
    assert model.converged_
    model.set_params(callback=lambda now: now["iteration"] == 7)
    model.fit(sim.X, sim.y, task=sim.task, checkpoint=path)
    assert model.n_iter_ == 7
    model.set_params(callback=None).fit(sim.X, sim.y, task=sim.task, resume=path)
    assert_array_equal(model.coef_, whole)


def shell_pages():
    pages = [page for page in PAGES if SHELL.search(page.read_text(encoding="utf-8"))]
    return [pytest.param(page, id=page.name) for page in pages]


@pytest.mark.parametrize("page", shell_pages())
def test_commands_in_the_documentation_run_in_order_and_print_what_is_shown(page, tmp_path):
    tools = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": os.pathsep.join([tools, os.environ["PATH"]])}
    printed = ""
    for kind, code in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "bash" or (kind == "sh" and page != PAGES[0]):
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", code],
                cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                text=True,
            )  # fmt: skip
            printed = done.stdout + done.stderr
            assert done.returncode == 0, f"{code}\n{printed}"
        elif kind == "text" and page != PAGES[0]:
            for line in code.splitlines():
                assert without_numbers(line) in without_numbers(printed), line


def without_numbers(text):
    """Only the words, because seconds, sizes and last digits differ between machines."""
    return re.sub(r"\d[\d.,]*", "#", text)


def numbers(text):
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]


def test_the_readme_prints_what_it_shows(capsys):
    exec(blocks("python")[0].values[0], {})
    printed, shown = capsys.readouterr().out, blocks("text")[0].values[0]
    assert without_numbers(printed).split() == without_numbers(shown).split()
    gains = [numbers(text.partition("Sharing cuts")[2])[:2] for text in (printed, shown)]
    assert_allclose(*gains, atol=2)


WITHOUT_OPTIONAL_MODULES = """
import sys

class Absent:
    def find_spec(name, *_):
        if name in ("pandas", "polars", "dask", "distributed", "torch", "onnx", "python_calamine"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent)
"""


@pytest.mark.parametrize("code", blocks("python", PAGES[:1]))
def test_the_readme_runs_with_the_required_dependencies_alone(code, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_OPTIONAL_MODULES + code],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_readme_keeps_its_promise(capsys):
    [code] = [
        one.values[0] for one in blocks("python", PAGES[:1]) if "parameter_error" in one.values[0]
    ]
    exec(code, {})
    rank, gain, *_ = capsys.readouterr().out.splitlines()
    assert rank == "3"
    assert float(gain) > 5


def test_the_readme_holds_exactly_two_set_up_commands():
    commands = [line for block in blocks("sh", PAGES[:1]) for line in block.values[0].splitlines()]
    assert len(commands) == 2
    assert commands[0].endswith("sharedspan demo")
    assert commands[1].endswith("pytest")


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])
def test_links_to_files_lead_somewhere(page):
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        path = link.partition("#")[0]
        if not path or "://" in path:
            continue
        made = re.match(r"gallery/(?:images/sphx_glr_)?(plot_[a-z_]+?)(?:_\d+\.png|\.rst)$", path)
        found = ROOT / "examples" / f"{made[1]}.py" if made else page.parent / path
        assert found.exists() or path == "gallery/index.rst", f"{page.name}: {link}"


def resolve(name):
    """The object with a dotted name, which may be an attribute of a class."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"{name} cannot be imported")


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES[1:]])
def test_names_that_pages_link_to_can_be_imported(page):
    for name in re.findall(r"\]\(#(sharedspan\.[\w.]+)\)", page.read_text(encoding="utf-8")):
        assert resolve(name) is not None


def test_every_row_of_the_symbol_table_has_all_its_columns():
    rows = [
        line for line in (DOCS / "symbols.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("|")
    ]  # fmt: skip
    assert len(rows) > 50
    for row in rows:
        assert len(re.split(r"(?<!\\)\|", row)) == 8, row


def test_every_fitted_attribute_is_in_the_symbol_table(tmp_path):
    sim = ss.simulate(n_tasks=8, n_features=4, rank=1, n_samples=20, random_state=0)
    table = tmp_path / "rows.csv"
    rows = np.column_stack([sim.task, sim.X, sim.y])
    np.savetxt(table, rows, delimiter=",", header="t,a,b,c,d,y", comments="")
    model = ss.SharedSpanRegressor(random_state=0).fit_file(table, task="t", target="y")
    fitted = {name for name in vars(model) if name.endswith("_") and not name.startswith("_")}
    fitted |= {name for name in dir(type(model)) if re.fullmatch(r"[a-z]\w*[a-z]_", name)}
    text = (DOCS / "symbols.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:\w+\.)?(\w+_)\b", text))
    assert {"coef_", "trace_", "n_rows_dropped_"} <= fitted
    assert sorted(fitted - named) == []


def test_the_api_page_lists_every_public_name():
    text = (DOCS / "api.rst").read_text(encoding="utf-8")
    listed = set(re.findall(r"^   ([\w.]+)$", text, re.MULTILINE))
    listed |= set(re.findall(r"py:data:: (\w+)$", text, re.MULTILINE))
    assert sorted(set(ss.__all__) - listed - {"datasets"}) == []
    for name in listed:
        assert resolve(f"sharedspan.{name}") is not None
    for name in ("load_parkinsons", "load_communities_crime", "load_table"):
        assert f"datasets.{name}" in listed


def test_every_estimator_has_a_page_in_the_gallery():
    pages = {path.name: path.read_text(encoding="utf-8") for path in EXAMPLES}
    for name, text in pages.items():
        compile(text, name, "exec")
    titles = [text.splitlines()[1] for text in pages.values()]
    for name in (name for name in ss.__all__ if name.endswith("Regressor")):
        assert any(title.startswith(f"{name}: ") for title in titles), name


def test_files_of_the_layout_exist():
    layout = (DOCS / "design.md").read_text(encoding="utf-8").split("Imports go one way")[0]
    there = {path.name for path in (ROOT / "src").rglob("*.py")}
    named = set(re.findall(r"[\w]+\.py\b", layout))
    assert len(named) > 80
    assert sorted(named - there) == []


def test_functions_of_the_walks_exist():
    page = (DOCS / "design.md").read_text(encoding="utf-8")
    packages = {path.stem for path in (ROOT / "src" / "sharedspan").iterdir()}
    named = {name for name in re.findall(r"`([a-z_]+(?:\.\w+)+)`", page)
             if name.split(".")[0] in packages and not name.endswith(".py")}  # fmt: skip
    assert len(named) > 25
    for name in sorted(named):
        parts = ["sharedspan", *name.split(".")]
        for end in range(len(parts), 0, -1):
            try:
                found = importlib.import_module(".".join(parts[:end]))
                break
            except ModuleNotFoundError:
                continue
        for part in parts[end:]:
            assert hasattr(found, part), name
            found = getattr(found, part)


@pytest.fixture
def extensions(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))


def test_the_gallery_orders_all_of_its_pages(extensions):
    order = importlib.import_module("gallery").PAGES
    assert sorted(order) == [path.name for path in EXAMPLES]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mean of |v - v*|^2", r"mean of \|v - v\*\|^2"),
        ("see coef_, W' and x_t", r"see coef\_, W' and x_t"),
        ("``coef_ |B|`` of B*", r"``coef_ |B|`` of B\*"),
        ("*others : estimators", "*others : estimators"),
        (">>> a * b", ">>> a * b"),
    ],
)
def test_marks_of_docstrings_are_text_but_for_literals(extensions, line, expected):
    assert importlib.import_module("plain_docstrings").plain(line) == expected
