"""The report: one page about a fitted model that needs nothing but a browser.

The page brings its own style and script, named to the browser by their hashes, and may load
nothing else. Names from users' tables reach it as text: escaped in the template, and as JSON that
the script sets as text.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

import sharedspan
from sharedspan.diagnosis.holdout_errors import Tick
from sharedspan.diagnosis.rows import read_rows
from sharedspan.diagnosis.text import change, number, short, whole
from sharedspan.persistence.atomic_write import atomic_path
from sharedspan.report.contents import contents, without_false_span
from sharedspan.report.facts import Facts, find_facts
from sharedspan.report.table import as_json, build_table


def write_report(
    model: Any,
    path: str | Path,
    X: Any = None,
    y: Any = None,
    task: Any = None,
    *,
    title: str | None = None,
    task_name: str = "task",
    target_name: str | None = None,
    tick: Tick | None = None,
) -> Path:
    """Write a self-contained HTML page about a fitted model.

    It shows what was fitted and how well, the gain over separate and pooled regression, the
    spectrum and why this rank, what each shared direction means, a map of the tasks, the tasks that
    do not fit, convergence, the advice of ``diagnose``, and a table of all coefficients to filter
    and download. The same model and rows give the same page.

    Parameters
    ----------
    model : fitted estimator of this package
    path : str or path
        Of the HTML file, which appears complete or not at all.
    X, y, task : optional
        Rows, as for ``fit``; those of the fit tell the most. They add errors on held-out rows (the
        model is fitted four times more), and more ways to find tasks that do not fit.
    title : str, optional
    task_name, target_name : str, optional
        What a task and the response are called.
    tick : callable of (what, done, total), optional
        Told now and then what is done and how far it is; a total of 0 is an unknown one.

    Returns
    -------
    Path
        The file.

    Examples
    --------
    >>> import sharedspan as ss
    >>> sim = ss.simulate(n_tasks=40, n_features=8, rank=2, n_samples=30, random_state=0)
    >>> model = ss.AdaptiveSpanRegressor().fit(sim.X, sim.y, task=sim.task)
    >>> ss.write_report(model, "report.html", sim.X, sim.y, sim.task)  # doctest: +SKIP
    """
    path = Path(path)
    found = find_facts(
        model, X, y, task, task_name=task_name, target_name=target_name, tick=tick
    )  # fmt: skip
    found = without_false_span(found)
    if tick is not None:
        tick("drawing", 0, 0)
    levels = None
    if X is not None and not found.directions.rank:  # what tasks differ in, where there is no map
        average = read_rows(model, X, y, task).X.mean(axis=0)
        levels = model.intercept_ + model.coef_ @ average
    page = _render(found, _title(found) if title is None else title, levels)
    with atomic_path(path) as temporary:
        temporary.write_bytes(page.encode("utf-8", "replace"))
    return path


def _title(found: Facts) -> str:
    target = "" if found.target_name is None else f"{short(found.target_name)}: "
    return f"{target}{found.diagnosis.n_tasks:,} regressions together"


def _render(found: Facts, title: str, levels: np.ndarray | None) -> str:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    folder = files("sharedspan.report") / "templates"
    style, script = ((folder / f"report.{kind}").read_text("utf-8") for kind in ("css", "js"))
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": number, "change": change, "short": short}
    environment.globals["name"] = _name
    table = build_table(found, levels)
    page = contents(found, table, levels)
    plots = {key: page["plots"][key] for key in sorted(page["plots"])}
    data = as_json(table.packed() | {"plots": plots, "task_name": whole(found.task_name)})
    return environment.from_string((folder / "report.html").read_text("utf-8")).render(
        page,
        title=short(title, 120),
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=Markup(data),
        version=sharedspan.__version__,
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _name(label: Any) -> Any:
    """A name from a user's table: isolated from the text around it, cut, whole when pointed at."""
    from markupsafe import Markup

    text, shown = whole(label), short(label)
    if text == shown:
        return Markup("<bdi>{}</bdi>").format(shown)
    return Markup('<bdi title="{}">{}</bdi>').format(text, shown)
