"""All commands. Each imports what it needs when it runs, so help is instant."""

from __future__ import annotations

from typing import Any

import click

from sharedspan import __version__
from sharedspan.cli.adapt import adapt_command
from sharedspan.cli.compare import compare_command
from sharedspan.cli.compile import compile_command
from sharedspan.cli.demo import demo_command
from sharedspan.cli.errors import one_line_usage_errors
from sharedspan.cli.fit import fit_command
from sharedspan.cli.plan import plan_command
from sharedspan.cli.predict import predict_command
from sharedspan.cli.report import report_command
from sharedspan.cli.reproduce import reproduce_command
from sharedspan.cli.simulate import simulate_command

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}
COMMANDS = (
    demo_command, compare_command, fit_command, report_command, predict_command, adapt_command,
    simulate_command, plan_command, reproduce_command, compile_command,
)  # fmt: skip


class Commands(click.Group):
    """Commands in the order in which they are added, and usage errors in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        with one_line_usage_errors():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with one_line_usage_errors():
            return super().invoke(ctx)


@click.group("sharedspan", cls=Commands, commands=COMMANDS, context_settings=CONTEXT_SETTINGS)
@click.version_option(__version__, prog_name="sharedspan")
def main() -> None:
    """Fast mixed models for many groups, or tasks, such as schools, patients or shops.

    \b
    Begin with your own table, a row for each observation:
      sharedspan compare school.csv --task school --target score
      sharedspan fit school.csv --task school --target score -o school.span
      sharedspan report school.span --data school.csv -o school.html
      sharedspan predict school.span next_year.csv -o predicted.csv
      sharedspan adapt school.span new_schools.csv -o new_schools.span
    If you have no table, `sharedspan demo --tables .` writes two example tables.
    """  # noqa: D301, the backslash tells click to leave the lines as they are
