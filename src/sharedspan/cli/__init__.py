"""The command line. Each command imports what it needs when it runs, so help is instant."""

from __future__ import annotations

import click

from sharedspan import __version__
from sharedspan.cli.adapt import adapt
from sharedspan.cli.compare import compare
from sharedspan.cli.demo import demo
from sharedspan.cli.fit import fit
from sharedspan.cli.plan import plan
from sharedspan.cli.predict import predict
from sharedspan.cli.report import report
from sharedspan.cli.reproduce import reproduce
from sharedspan.cli.simulate import simulate


class InOrder(click.Group):
    """Commands in the order in which they are met, not of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=InOrder, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sharedspan")
def main() -> None:
    r"""Regression over many related tasks that share a low-dimensional span.

    \b
    Begin with your own table, a row for each observation:
      sharedspan compare school.csv --task school --target score
      sharedspan fit school.csv --task school --target score -o school.span
      sharedspan report school.span --data school.csv -o school.html
      sharedspan predict school.span next_year.csv -o predicted.csv
      sharedspan adapt school.span new_schools.csv -o new_schools.span
    Without one, begin with `sharedspan demo --tables .`, which writes two.
    """


for command in (demo, compare, fit, report, predict, adapt, simulate, plan, reproduce):
    main.add_command(command)
