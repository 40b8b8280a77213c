"""Progress of long work in the kernel of a notebook, where a bar is a piece of HTML."""

import re
import subprocess
import sys
import types
from contextlib import suppress

import numpy as np
import pytest

import sharedspan as ss
from sharedspan import progress
from sharedspan.progress import current_progress, no_progress, progress_bar


@pytest.fixture
def notebook(monkeypatch):
    """The outputs that are visible in a notebook, each with all of its states."""
    outputs = []

    class Handle:
        def __init__(self, page):
            self.pages = [page]

        def update(self, bundle, *, raw):
            assert raw
            self.pages.append(bundle["text/html"])

    def display(bundle, *, raw, display_id):
        assert raw
        assert display_id
        outputs.append(Handle(bundle["text/html"]))
        return outputs[-1]

    ipython = types.ModuleType("IPython")
    ipython.version_info = (9, 0)  # matplotlib asks
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    shown = types.ModuleType("IPython.display")
    shown.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    return outputs


def test_a_bar_in_a_notebook_shows_each_stage_and_disappears(notebook):
    with progress_bar() as bar:
        bar("reading <rows>", 0, 8)
        bar("fitting", 3, 8)
        bar("saving", 0, 0)
    (output,) = notebook
    reading, fitting, saving, end = output.pages
    assert "reading &lt;rows&gt;" in reading
    assert re.search(r'<progress[^>]* value="3"[^>]* max="8"', fitting)
    assert "3/8" in fitting
    assert "max=" not in saving  # how much is left is unknown
    assert end == ""


def test_a_bar_that_stays_shows_its_last_state(notebook):
    with progress_bar(transient=False) as bar:
        for done in range(1001):
            bar("fitting", done, 1000)
    (output,) = notebook
    assert "1,000/1,000" in output.pages[-1]
    assert len(output.pages) < 100


def test_a_bar_disappears_after_an_error(notebook):
    with suppress(ZeroDivisionError), progress_bar() as bar:
        bar("fitting", 0, 1)
        raise ZeroDivisionError
    assert notebook[0].pages[-1] == ""


def test_verbose_estimators_and_long_calls_show_a_bar_in_a_notebook(notebook, small, tmp_path):
    model = ss.SharedSpanRegressor(rank=2, verbose=1, random_state=0)
    model.fit(small.X, small.y, small.task)
    assert len(notebook) == 1
    ss.write_report(model, tmp_path / "report.html", small.X, small.y, small.task)
    assert len(notebook) == 2
    ss.compare(small.X, small.y, small.task, methods=["PooledRegressor"], repeats=2)
    assert len(notebook) == 3
    rows = np.column_stack([small.task, small.X, small.y])
    names = ["task", *(f"x{j}" for j in range(small.X.shape[1])), "y"]
    path = tmp_path / "table.csv"
    np.savetxt(path, rows, delimiter=",", header=",".join(names), comments="")
    ss.PooledRegressor().fit_file(path, task="task", target="y")
    assert len(notebook) == 4
    assert all(output.pages[-1] == "" for output in notebook)


def test_a_callback_of_the_user_replaces_the_bar(notebook):
    calls = []
    assert current_progress(calls.append, None) == calls.append
    assert not notebook


def test_python_without_a_notebook_shows_nothing(monkeypatch):
    assert current_progress(None, None) is no_progress
    terminal = types.ModuleType("IPython")
    terminal.get_ipython = lambda: types.SimpleNamespace()  # IPython on a terminal
    monkeypatch.setitem(sys.modules, "IPython", terminal)
    assert current_progress(None, None) is no_progress
    assert not progress.in_notebook()


def test_files_are_read_in_a_kernel_without_widgets():
    """DuckDB refuses there to set its own progress bar."""
    code = (
        "import sys, types; kernel = types.SimpleNamespace(config={'IPKernelApp': {}}); "
        "sys.modules['IPython'] = types.SimpleNamespace(get_ipython=lambda: kernel); "
        "sys.modules['ipywidgets'] = None; "
        "from sharedspan.inputs.files import open_duckdb; "
        "print(open_duckdb().sql('SELECT 7').fetchall())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[(7,)]\n", done.stderr
