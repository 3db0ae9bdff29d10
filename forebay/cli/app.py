# SPDX-License-Identifier: Apache-2.0
"""The commands of the command line.

Exit codes: 0 success, 1 error, 2 invalid command line, 3 lag above `--max-lag`, or unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated

import typer

from forebay.cli import index, kafka_lag, scaffold, sources, state
from forebay.cli.arguments import Options, Target, option_texts, say, target_class, target_source
from forebay.errors import ForebayError
from forebay.inspection.describe import describe as description
from forebay.inspection.describe import peek as first_rows
from forebay.inspection.offsets import offsets as offsets_of
from forebay.inspection.report import report as write_report
from forebay.version import __version__

app = typer.Typer(
    help="Look at sources, streams and topics; check an environment; start a connector project.",
    no_args_is_help=True,
    add_completion=False,
    # Its tracebacks show values of variables, which may be secret.
    pretty_exceptions_enable=False,
)
kafka = typer.Typer(help="Look at Apache Kafka.", no_args_is_help=True)
app.add_typer(kafka, name="kafka")
kafka.command("lag")(kafka_lag.lag)
app.add_typer(state.state, name="state")
app.add_typer(index.index, name="index")
for command in (sources.sources, sources.doctor, sources.verify, scaffold.new):
    app.command()(command)
app.command("check", hidden=True)(sources.verify)  # the name of the function that it calls


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. An error of forebay is printed without a traceback."""
    # kafka-python logs each failed connection; the errors of forebay contain the cause.
    logging.getLogger("kafka").addHandler(logging.NullHandler())
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="forebay", standalone_mode=True)
    except SystemExit as end:  # typer always exits like this
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except ForebayError as error:
        say(f"forebay: {error}", err=True)
        return 1
    return code if isinstance(code, int) else 0


@app.callback(invoke_without_command=True)
def _root(*, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        say(f"forebay {__version__}")
        raise typer.Exit


@app.command()
def offsets(
    checkpoint: Annotated[str, typer.Argument(help="The checkpointLocation of the query.")],
) -> None:
    """Show the position of every split of a streaming query, from its checkpoint."""
    say(str(offsets_of(checkpoint)))


@app.command()
def report(
    directory: Annotated[
        str, typer.Argument(help="What forebay.record_progress wrote, or the checkpointLocation of the query.")
    ],
    file: Annotated[str, typer.Option("-f", "--file", help="The HTML file to write.")] = "forebay-report.html",
) -> None:
    """Write the history of a streaming query as one HTML file: watermarks, held and idle splits, lag, dropped rows."""
    say(write_report(directory, file))


@app.command()
def describe(target: Target, option: Options = None) -> None:
    """Show the options of a source; if options are given, also its schema."""
    options = option_texts(option)
    say(str(description(target_source(target, options) if options else target_class(target))))


@app.command()
def peek(
    target: Target,
    option: Options = None,
    rows: Annotated[int, typer.Option("-n", "--rows", min=0, help="Maximum number of rows.")] = 20,
) -> None:
    """Show the first rows of a source, without Spark."""
    say(str(first_rows(target_source(target, option_texts(option)), rows)))
