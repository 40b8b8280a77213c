"""The report: an HTML page about a fitted model that needs only a browser.

The page contains its own style and script, whose hashes its security policy lists, and may load
nothing else. Names from users' tables are always text: escaped in the template, and as JSON that
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
from sharedspan.diagnosis import text as formats
from sharedspan.diagnosis.advice import named_groups
from sharedspan.diagnosis.holdout_errors import FEWEST_ROWS
from sharedspan.diagnosis.model_view import ModelView
from sharedspan.diagnosis.text import count, short, whole
from sharedspan.estimators.summaries import typed_parameters
from sharedspan.inputs.table_columns import TableColumns
from sharedspan.persistence.atomic_write import atomic_path
from sharedspan.progress import ProgressCallback, current_progress
from sharedspan.report import text
from sharedspan.report.data_facts import data_facts
from sharedspan.report.facts import Facts, PageTable, build_table
from sharedspan.report.figures import as_svg
from sharedspan.report.headline import advice, headline
from sharedspan.report.page_plots import page_plots
from sharedspan.report.prediction_plots import PagePlot


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
    progress: ProgressCallback | None = None,
    tick: ProgressCallback | None = None,
) -> Path:
    """Write a self-contained HTML page about a fitted model.

    It begins with the answer to whether sharing helps: errors on held-out rows, compared with the
    same slopes for all tasks and with one model per task. It shows advice, what the data looked
    like, observed against predicted responses, the coverage of intervals, what the tasks have in
    common and how they differ, tasks that do not fit, ``model.summary()``, and a table of all
    coefficients to filter and download. The same model and rows give the same page.

    Parameters
    ----------
    model : fitted estimator of this package
        Or a Pipeline that ends in one.
    path : str or path
        The HTML file, which is written completely or not at all.
    X, y, task : optional
        Rows, as for ``fit``, preferably those of the fit. They add errors on held-out rows (the
        model is fitted four more times), and more ways to detect tasks that do not fit.
    title : str, optional
    task_name, target_name : str, optional
        Names of the tasks and of the response on the page, by default those of the model's columns
        if it has them.
    progress : callable of (stage, done, total), optional
        Called with the progress of each stage; a total of 0 means that it is unknown.
    tick : callable, optional
        Deprecated: the old name of ``progress``.

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
    if (X is None) != (y is None):
        given, missing = ("y", "X") if X is None else ("X", "y")
        raise ValueError(f"{given} was given without {missing}: give both, or neither.")
    if X is None and task is not None:
        raise ValueError("task was given without X and y: give all of them, or none.")
    write_page(
        ModelView(model, X, y, task), path, title=title, task_name=task_name,
        target_name=target_name, progress=current_progress(progress, tick),
    )  # fmt: skip
    return Path(path)


def write_page(
    view: ModelView, path: str | Path, *, title: str | None, task_name: str,
    target_name: str | None, progress: ProgressCallback, table: TableColumns | None = None,
    model: Any = None,
) -> Facts:  # fmt: skip
    """Write the page of a model, and return what it shows.

    ``table`` are the columns of the fit, and ``model`` is the fitted model, if the view has a copy
    that takes coded rows.
    """
    path, facts = Path(path), Facts(view, task_name, target_name, progress, table, model)
    progress("drawing", 0, 0)
    page = _render(facts, title or _title(facts))
    with atomic_path(path) as hidden:
        hidden.write_bytes(page.encode("utf-8", "replace"))
    return facts


def _title(facts: Facts) -> str:
    """A title that names the response and the tasks, as far as they have names."""
    if facts.target_name is None:
        return f"One model for {count(facts.diagnosis.n_tasks, 'task')}"
    return f"{short(facts.target_name)} by {short(facts.task_name)}"


def _render(facts: Facts, title: str) -> str:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    folder = files("sharedspan.report") / "templates"
    style, script, template = (
        (folder / f"report.{kind}").read_text("utf-8") for kind in ("css", "js", "html")
    )
    hashes = [hashlib.sha256(source.encode("utf-8")).digest() for source in (style, script)]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for name in ("format_number", "change", "percent", "setting", "count", "listed", "short"):
        environment.filters[name.removeprefix("format_")] = getattr(formats, name)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.globals |= {"name": _name, "headline": headline, "advice_of": advice,
                            "data_facts": data_facts, "fewest_rows": FEWEST_ROWS,
                            "typed_parameters": typed_parameters}  # fmt: skip
    environment.filters["sentence"] = lambda words: words[:1].upper() + words[1:]
    environment.filters["svg"] = lambda plot: Markup(as_svg(plot.panel, plot.key, plot.words))
    table, view, spans = build_table(facts), facts.view, facts.directions
    plots = {plot.key: plot for plot in page_plots(facts, table.tasks)}
    candidates = []
    if view.span.extra.get("candidates"):
        candidates = text.distinct_candidates(view.span.extra, view.rank or 0)
    size = np.where(spans.determined, np.abs(spans.loadings), 0.0).max(axis=1, initial=0.0)
    constant = view.metric.deviation == 0
    by_loading = np.argsort(-size, kind="stable")
    return environment.from_string(template).render(
        title=short(title, 120),
        style=Markup(style),
        script=Markup(script),
        hashes=[base64.b64encode(digest).decode("ascii") for digest in hashes],
        data=_page_data(facts, table, plots),
        version=sharedspan.__version__,
        facts=facts,
        text=text,
        table=table,
        figures=plots,
        candidates=candidates,
        chosen=text.chosen_candidate(view.span.extra, view.rank or 0) if candidates else None,
        by_loading=by_loading[~constant[by_loading]],
        largest_loading=size,
        constant=[view.names[j] for j in np.flatnonzero(constant)],
        collinear=named_groups(view.collinear),
    )


def _name(label: Any) -> Any:
    """A name from a user's table as HTML: isolated from its context, shortened, whole on hover."""
    from markupsafe import Markup

    text, visible = whole(label), short(label)
    if text == visible:
        return Markup("<bdi>{}</bdi>").format(visible)
    return Markup('<bdi title="{}">{}</bdi>').format(text, visible)


def _page_data(facts: Facts, table: PageTable, plots: dict[str, PagePlot]) -> dict[str, Any]:
    """The data for the page's script: tasks, columns and the tasks of each plot."""
    place = {int(t): i for i, t in enumerate(table.tasks)}
    keys = {column.key: i for i, column in enumerate(table.columns)}
    hover: dict[str, Any] = {}
    for key, plot in sorted(plots.items()):
        if plot.tasks is not None:
            order = [place[int(t)] for t in plot.tasks]
            columns = [keys[name] for name in plot.columns if name in keys]
            same = order == list(range(len(place)))
            hover[key] = {"tasks": None if same else order, "columns": columns}
    return {
        "tasks": table.labels,
        "columns": [column.packed(table.itemsize) for column in table.columns],
        "itemsize": table.itemsize,
        "plots": hover,
        "task_name": whole(facts.task_name),
    }
