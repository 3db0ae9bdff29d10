# SPDX-License-Identifier: Apache-2.0
"""`forebay sources`, `forebay doctor`, `forebay verify`: what is installed, and whether it works."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from typing import Annotated

import typer

from forebay.cli.arguments import Json, Options, Target, option_texts, say, target_source
from forebay.inspection.describe import installed_sources, peek, sources_table
from forebay.inspection.environment import Diagnosis, check_environment, check_source
from forebay.text_tables import text_table


def sources(*, as_json: Json = False) -> None:
    """List the installed formats; with --json, also their options."""
    installed = installed_sources()
    say(json.dumps([source.to_json() for source in installed], indent=2) if as_json else sources_table(installed))


def doctor(
    name: Annotated[
        str | None, typer.Argument(help="A format or MODULE:Class to read with these options.", show_default=False)
    ] = None,
    option: Options = None,
    *,
    as_json: Json = False,
) -> None:
    """Check Python, Java, PySpark and the extras; with a format, also whether its service can be reached.

    The exit code is 1 if something is wrong.
    """
    diagnoses = check_environment()
    if name is not None:
        options = option_texts(option)
        diagnoses.append(check_source(name, lambda: _reached(name, options)))
    if as_json:
        say(json.dumps([asdict(diagnosis) for diagnosis in diagnoses], indent=2))
    else:
        say(_findings(diagnoses))
    if any(diagnosis.state == "wrong" for diagnosis in diagnoses):
        raise typer.Exit(1)


def _reached(name: str, options: dict[str, str]) -> str:
    peeked = peek(target_source(name, options), 1)
    return f"reached; columns: {', '.join(peeked.table.schema.names)}"


def _findings(diagnoses: list[Diagnosis]) -> str:
    rows = [(diagnosis.check, diagnosis.state, diagnosis.found) for diagnosis in diagnoses]
    table = text_table(("check", "state", "found"), rows, whole=(2,))
    wrong = [diagnosis for diagnosis in diagnoses if diagnosis.state == "wrong"]
    missing = [diagnosis for diagnosis in diagnoses if diagnosis.state == "missing"]
    steps = [f"{diagnosis.check}: next step: {diagnosis.advice}" for diagnosis in wrong]
    optional = [f"{diagnosis.check}: {diagnosis.advice}" for diagnosis in missing]
    return "\n".join([table, *steps, *(["optional:", *(f"  {line}" for line in optional)] if optional else [])])


def verify(
    target: Target,
    option: Options = None,
    *,
    seconds: Annotated[float, typer.Option(min=1, help="Maximum seconds for all checks.")] = 30.0,
    seed: Annotated[int, typer.Option(help="The seed of the positions where checks interrupt reads.")] = 0,
    rule: Annotated[list[str] | None, typer.Option(help="Check only this rule; may be repeated.")] = None,
    as_json: Json = False,
) -> None:
    """Run the conformance kit on a source. The exit code is 1 if it breaks a rule.

    The source is read many times, and not changed; a source that consumes its input, such as a queue, loses records.
    """
    from forebay.testkit import ConformanceError, check

    source = target_source(target, option_texts(option))
    if source.consumes:
        typer.echo(f"warning: {source.name} consumes its input: verify takes its records", err=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the report shows the warnings
        try:
            report = check(source, seconds=seconds, seed=seed, rules=rule)
        except ConformanceError as error:
            report = error.report
    if as_json:
        results = [asdict(result) for result in report.results]
        head = {"source": report.source, "verdict": report.verdict, "seed": report.seed}
        say(json.dumps({**head, "headline": report.headline, "checks": results}, indent=2))
    else:
        say(str(report))
    if report.failed:
        raise typer.Exit(1)
