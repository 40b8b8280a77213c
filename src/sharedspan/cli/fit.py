"""``sharedspan fit``: all tasks of users' files together, kept as a model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from sharedspan.cli import options
from sharedspan.cli.errors import (
    Counted,
    MistakeError,
    collected_warnings,
    echo_json,
    finite,
    manners,
    require_model_out,
    require_out,
    require_seed,
    ticking,
    writing,
)


@click.command()
@options.tables
@options.task()
@options.target()
@options.drop
@options.missing
@click.option(
    "--text",
    type=click.Choice(["error", "one_hot"]),
    default="error",
    show_default=True,
    help="Features of text: refuse the table, or a column of zeros and ones for each level.",
)
@click.option(
    "--estimator",
    type=click.Choice(options.ESTIMATORS),
    metavar="NAME",
    default=options.ESTIMATORS[0],
    show_default=True,
    help="What to fit; `sharedspan compare` says which one suits a table.  One of "
    f"{', '.join(options.ESTIMATORS)}.",
)
@click.option(
    "--rank", metavar="K", help="Dimension of the shared span, or auto, evidence or threshold."
)
@click.option(
    "--solver",
    metavar="NAME",
    help="How to get there, such as tpgd, the paper's.  [default: auto, where there is a choice]",
)
@click.option(
    "--noise-per-task", is_flag=True, help="A noise level for each task instead of one for all."
)
@click.option("--max-iter", type=int, metavar="N", help="Most iterations of the solver.")
@options.seed("the fit")
@click.option("--memory-limit", metavar="SIZE", help="Most memory to take, such as 2GB.")
@click.option("--checkpoint", metavar="FILE", help="Keep the state of a long fit in this file.")
@click.option("--resume", metavar="FILE", help="Go on from this checkpoint of a killed fit.")
@click.option(
    "--engine",
    metavar="ADDRESS",
    help="Fit on the Dask cluster of this scheduler, such as tcp://host:8786.",
)
@click.option(
    "--coefficients",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a table of the coefficients too: a .csv or .parquet file.",
)
@options.as_json
@options.out("Where to keep the model, by custom a .span file.")
def fit(
    tables: tuple[str, ...],
    task: str,
    target: str,
    drop: tuple[str, ...],
    missing: str,
    text: str,
    estimator: str,
    rank: str | None,
    solver: str | None,
    noise_per_task: bool,
    max_iter: int | None,
    seed: int,
    memory_limit: str | None,
    checkpoint: str | None,
    resume: str | None,
    engine: str | None,
    coefficients: Path | None,
    as_json: bool,
    out: Path,
) -> None:
    """Fit all tasks of your files together, and keep the model.

    TABLE is a CSV or Parquet file, a folder of them, or a pattern in quotes; the files together may
    be larger than memory. All columns but task, target and dropped ones are features. Sorted rows
    lie in the folder of the environment variable TMPDIR meanwhile.

    Example: sharedspan fit "sales/*.parquet" --task shop --target units --rank 3 -o sales.span
    """
    require_seed(seed)
    if out.suffix.lower() in (".csv", ".parquet"):
        raise MistakeError(
            f"--out {out} would hold a model, not a table: end it in .span, or give --coefficients "
            f"{out} too for a table of the coefficients."
        )
    require_model_out(out)
    with manners(f"Stopped. {out} was not written."), ticking() as tick:
        from sharedspan.inputs.files import find_files

        found = find_files(tables)
        require_out(out, apart_from=found)
        require_out(coefficients, ".csv", ".parquet", apart_from=[*found, out])
        about = _fit(
            {"estimator": estimator, "rank": rank, "solver": solver,
             "noise": "per_task" if noise_per_task else None,
             "max_iter": max_iter, "seed": seed, "engine": engine, "checkpoint": checkpoint,
             "resume": resume},
            {"path": tables, "task": task, "target": target, "drop": drop, "missing": missing,
             "text": text, "memory_limit": memory_limit},
            out, coefficients, Counted(tick),
        )  # fmt: skip
    if as_json:
        echo_json(finite(about))
        return
    print_fit(about)
    data = " ".join(f"--data {shlex.quote(table)}" for table in tables)
    page = shlex.quote(str(out.with_suffix(".html")))
    click.echo(f"Next: sharedspan report {shlex.quote(str(out))} {data} -o {page}")


def _fit(
    method: dict[str, Any],
    data: dict[str, Any],
    out: Path,
    coefficients: Path | None,
    tick: Counted,
) -> dict[str, Any]:
    """Fit, keep the model, and say what was done."""
    import time

    from sharedspan.persistence.model_file import MODEL_FORMAT

    model, kept = _model(method)
    began = time.perf_counter()
    MODEL_FORMAT.require_writable(out)
    with collected_warnings() as said:
        model.fit_file(**data, **kept, tick=tick)
        if coefficients is not None:
            with writing(coefficients):
                write_coefficients(model, data["task"], coefficients)
        model.save(out)
    about = facts(model) | {"out": str(out), "warnings": said}
    if coefficients is not None:
        about["coefficients"] = str(coefficients)
    return about | {
        # A cluster does not say.
        "n_rows": tick.n_rows - model.n_rows_dropped_ if tick.n_rows else None,
        "n_rows_dropped": model.n_rows_dropped_,
        "seconds": round(time.perf_counter() - began, 3),
    }


def _model(method: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The estimator, and what its ``fit_file`` is told of checkpoints."""
    from inspect import signature

    import sharedspan

    maker = getattr(sharedspan, method["estimator"])
    known, rank = maker().get_params(), method["rank"]
    solver = method["solver"] or ("auto" if "solver" in known else None)
    chosen = {"rank": int(rank) if rank and rank.isdigit() else rank, "solver": solver}
    chosen |= {name: method[name] for name in ("noise", "max_iter", "engine")}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    kept = {name: method[name] for name in ("checkpoint", "resume") if method[name] is not None}
    known_to_fit = signature(maker.fit).parameters
    for name in (*chosen, *kept):
        if name not in known and name not in known_to_fit:
            option = {"noise": "--noise-per-task", "max_iter": "--max-iter"}.get(name, f"--{name}")
            raise ValueError(f"{method['estimator']} has no {name}: leave {option} out.")
    if "random_state" in known:
        chosen["random_state"] = method["seed"]
    return maker(**chosen), kept


def facts(model: Any) -> dict[str, Any]:
    """A fitted model in a few numbers."""
    noise = getattr(model, "noise_variance_", None)
    return {
        "estimator": type(model).__name__,
        "n_tasks": len(model.tasks_),
        "n_features": len(model.coef_names_),
        "rank": int(model.rank_) if hasattr(model, "rank_") else None,
        "noise": None if noise is None else float(noise.mean() ** 0.5),
    }


def print_fit(about: dict[str, Any]) -> None:
    """What a fit came to, in words."""
    from sharedspan.diagnosis.text import count

    parts = [count(about["n_tasks"], "task"), count(about["n_features"], "feature")]
    if about["n_rows"] is not None:
        parts.insert(1, count(about["n_rows"], "row"))
    if about["rank"] is not None:
        parts.append(f"rank {about['rank']}")
    if about["noise"] is not None:
        parts.append(f"noise {about['noise']:.3g}")
    click.echo(f"{about['estimator']}: {', '.join(parts)}; {about['seconds']:.1f} seconds")
    if about["n_rows_dropped"]:
        click.echo(f"{about['n_rows_dropped']:,} row(s) with missing values were left out.")
    for warning in about["warnings"]:
        click.echo(f"Warning: {warning}", err=True)
    if "coefficients" in about:
        click.echo(f"Coefficients: {about['coefficients']}")
    click.echo(f"Model: {about['out']}")


def write_coefficients(model: Any, task: str, out: Path) -> None:
    """A table with a row for each task, under its name or not at all."""
    import pyarrow as pa

    from sharedspan.persistence.atomic_write import atomic_table

    names = list(model.coef_names_)
    level = "intercept" if "intercept" not in (task, *names) else "(intercept)"
    numbers = model.tasks_.dtype.kind in "iuf"
    labels = model.tasks_ if numbers else pa.array(map(str, model.tasks_.tolist()))
    columns = [labels, model.intercept_, *model.coef_.T]
    with atomic_table(out) as write:
        write(columns, [task, level, *names])
