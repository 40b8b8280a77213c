"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from glob import glob
from pathlib import Path
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def repeatable(name: str, metavar: str, text: str, default: str = "") -> Decorator:
    """An option that may be given several times."""
    text += f"; repeatable.  [default: {default}]" if default else "; repeatable."
    return click.option(name, multiple=True, metavar=metavar, help=text)


def choice(name: str, known: Sequence[str], default: str, text: str) -> Decorator:
    """An option that takes one of many names, which its help lists."""
    kind = click.Choice(known)
    return click.option(
        name, type=kind, metavar="NAME", default=default, show_default=False, help=text
    )


json_output = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
tables = click.argument("tables", nargs=-1, required=True, metavar="TABLE...")
model = click.argument("model", metavar="MODEL", type=click.Path(dir_okay=False, path_type=Path))
drop = repeatable("--drop", "COL", "Column to leave out")
missing_of_model = click.option(
    "--missing",
    type=click.Choice(["error", "drop"]),
    help="How to treat rows with missing values: raise an error, or leave the rows out.  "
    "[default: as in the fit]",
)
rank = click.option(
    "--rank", type=int, required=True, metavar="K", help="Dimension of the shared span."
)
POSITIVE = click.IntRange(1)
n_tasks = click.option(
    "--tasks", "n_tasks", type=POSITIVE, required=True, help="Number of tasks T."
)
n_features = click.option(
    "--features", "n_features", type=POSITIVE, required=True, help="Number of features d."
)


def _table_option(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Read the tables of a command with an option that is not part of a model."""
    if value is not None:
        from sharedspan.inputs.table_text import table_options

        try:
            context.with_resource(table_options(**{str(parameter.name): value}))
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from error


def table_text(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options --encoding and --sheet of tables."""
    common: dict[str, Any] = {"expose_value": False, "callback": _table_option, "metavar": "NAME"}
    for name, text in (
        ("--sheet", "Sheet of a workbook, if it has several."),
        ("--encoding", "Encoding of text tables, such as latin-1.  [default: UTF-8]"),
    ):
        command = click.option(name, help=text, **common)(command)
    return command


def table_text_typed() -> list[str]:
    """The options --encoding and --sheet as they were given."""
    from sharedspan.inputs.table_text import current_options

    given = vars(current_options()).items()
    return [part for name, value in given if value is not None for part in (f"--{name}", value)]


def seed(purpose: str) -> Decorator:
    """The seed of whatever is random in a command."""
    return click.option("--seed", type=click.IntRange(0), default=0, help=f"Seed of {purpose}.")


def _once(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> str | None:
    """The value of an option that names one column; an error if it was given again."""
    if len(value) > 1:
        name = f"--{parameter.name}"
        text = f"{name} was given twice, but it names only one column: leave one out."
        if name == "--task":
            nested = f"sharedspan fit TABLE 'y ~ x + (1 | {value[0]}/{value[1]})'"
            text += f" Nested groups need a formula, such as {nested}."
        raise click.UsageError(text, context)
    return value[0] if value else None


def _column(name: str, text: str, *, required: bool = True, default: str = "") -> Decorator:
    names = (name, "--group") if name == "--task" else (name,)
    return click.option(
        *names, required=required, metavar="COL", help=text + default, multiple=True, callback=_once
    )


TASK, TARGET = "Column with the task of each row.", "Column to predict."
OF_FIT: dict[str, Any] = {"required": False, "default": "  [required without FORMULA]"}
OF_MODEL: dict[str, Any] = {"required": False, "default": "  [default: as in the fit]"}
task, target = _column("--task", TASK), _column("--target", TARGET)
task_of_fit, target_of_fit = (
    _column("--task", TASK, **OF_FIT),
    _column("--target", TARGET, **OF_FIT),
)
task_of_model = _column("--task", TASK, **OF_MODEL)
target_of_model = _column("--target", TARGET, **OF_MODEL)


def require_task_and_target(given: dict[str, Any]) -> None:
    """Raise a usage error unless both columns are given."""
    for name in ("task", "target"):
        if given[name] is None:
            raise missing_option(f"--{name}")


def missing_option(name: str) -> click.UsageError:
    """The error for an option that a command needs."""
    return click.UsageError(f"Missing option '{name}'.", click.get_current_context())


def is_formula(text: str) -> bool:
    """Whether an argument is a formula and not a table; "~/school.csv" is a table."""
    return "~" in text.lstrip("~") and not os.path.exists(text) and not glob(text)


def out(text: str, **more: Any) -> Decorator:
    """The path of the result."""
    kind = click.Path(dir_okay=False, path_type=Path)
    settings: dict[str, Any] = {"type": kind, "help": text, "required": True} | more
    return click.option("-o", "--out", **settings)


COLUMN_OPTIONS = (
    click.option(
        "--missing",
        type=click.Choice(["error", "drop", "indicator"]),
        default="error",
        help="How to treat rows with missing values: raise an error, leave the rows out, or fill "
        "in means and add a feature that marks missing values.",
    ),
    repeatable("--categorical", "COL", "Numeric column to treat as categorical, such as codes"),
    repeatable(
        "--ordinal", "COL=A,B,C",
        "Levels of a column in their order; the column becomes one feature with the values 0, 1, "
        "2, ...",
    ),
    repeatable(
        "--reference", "COL=LEVEL", "Reference level of a categorical column", "the first level"
    ),
    click.option(
        "--coding", type=click.Choice(["reference", "sum"]), default="reference",
        help="Meaning of the coefficients of levels: differences from the reference level, or from "
        "the mean over all levels.",
    ),
    click.option(
        "--rare", type=click.IntRange(0), default=5, metavar="N",
        help="Pool the levels of a column with fewer than N rows into one level; 0 pools none.",
    ),
    repeatable(
        "--date", "COL=FORMAT",
        "Format of a date column that is not in ISO form, such as sold=%d.%m.%Y",
    ),
    repeatable(
        "--season", "COL[=PERIOD]",
        "Date column with a periodic effect, and its period: year (the default), week or day",
    ),
    repeatable(
        "--spline", "COL",
        "Numeric or date column with a nonlinear effect (a spline), or `all` for every such column",
    ),
    click.option(
        "--knots", type=click.IntRange(3), default=10, metavar="N", help="Knots of each spline."
    ),
    repeatable("--interaction", "A:B", "Pair of columns whose products are added as features"),
    repeatable("--na-values", "TEXT", "Text that stands for a missing value, such as unknown"),
    click.option(
        "--decimal", type=click.Choice([".", ","]), default=".", help="Decimal mark of numbers."
    ),
    click.option(
        "--thousands", default="", show_default=False, metavar="MARK",
        help="Thousands separator, such as a point.  [default: none]",
    ),
    click.option("--text", type=click.Choice(["error", "one_hot"]), hidden=True),
)  # fmt: skip
NAMES_OF_OPTIONS = (
    "missing", "categorical", "ordinal", "reference", "coding", "rare", "date", "season", "spline",
    "knots", "interaction", "na_values", "decimal", "thousands", "text",
)  # fmt: skip


def columns(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options about the columns of a table; ``columns_given`` makes ``Columns`` of them."""
    for option in reversed(COLUMN_OPTIONS):
        command = option(command)
    return command


def columns_given(given: dict[str, Any]) -> Any:
    """What the options say about the columns; they are taken out of ``given``."""
    from sharedspan.inputs.columns import Columns

    options = {name: given.pop(name) for name in NAMES_OF_OPTIONS if name in given}
    if options.pop("text", None) is not None:
        click.echo("--text is deprecated and not needed: text is a factor.", err=True)
    interactions = [_pair("interaction", text, ":") for text in options.pop("interaction")]
    dates = dict(_pair("date", text, "=") for text in options.pop("date"))
    ordinal = dict(_pair("ordinal", text, "=") for text in options.pop("ordinal"))
    season: dict[str, list[str]] = {}
    for text in options.pop("season"):
        name, mark, period = text.partition("=")
        season.setdefault(name, []).append(period if mark else "year")
    spline = options.pop("spline")
    return Columns(
        **options | {"reference": dict(_pair("reference", t, "=") for t in options["reference"])},
        ordinal={name: levels.split(",") for name, levels in ordinal.items()},
        dates=dates,
        season=season,
        spline="all" if spline == ("all",) else spline,
        interactions=interactions,
    )


def _pair(option: str, text: str, mark: str) -> tuple[str, str]:
    """The two parts of the value of an option."""
    name, found, rest = text.partition(mark)
    if not name or not found or not rest:
        raise ValueError(f"--{option} {text} does not have the form A{mark}B.")
    return name, rest


def as_typed(columns: Any) -> list[str]:
    """The options of a command line that give these columns."""
    typed: list[str] = []
    for name in ("missing", "coding", "rare", "knots", "decimal", "thousands"):
        if getattr(columns, name) != getattr(type(columns)(), name):
            typed += [f"--{name}", str(getattr(columns, name))]
    for option, values in (
        ("categorical", columns.categorical),
        ("ordinal", [f"{name}={','.join(levels)}" for name, levels in columns.ordinal.items()]),
        ("reference", [f"{name}={level}" for name, level in columns.reference.items()]),
        ("date", [f"{name}={form}" for name, form in columns.dates.items()]),
        ("season", [f"{name}={p}" for name, periods in columns.season.items() for p in periods]),
        ("spline", ["all"] if columns.spline == "all" else columns.spline),
        ("interaction", [f"{a}:{b}" for a, b in columns.interactions]),
        ("na-values", columns.na_values),
    ):
        typed += [part for value in values for part in (f"--{option}", value)]
    return typed
