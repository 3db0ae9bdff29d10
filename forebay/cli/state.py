# SPDX-License-Identifier: Apache-2.0
"""`forebay state show`, `forebay state reshard`: the keyed state of streaming queries."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from forebay.cli.arguments import Json, option_texts, say, storage_settings
from forebay.errors import ConfigurationError, printable
from forebay.table.changelog.state.inspection import (
    OperatorReport,
    ShardReport,
    StateVerification,
    StoredRow,
    operators,
    report,
    stored_rows,
    verify,
)
from forebay.table.changelog.state.reshard import reshard as reshard_state
from forebay.table.changelog.state.shard import OperatorState
from forebay.text_tables import text_table

_Location = Annotated[str, typer.Argument(help="The state_location of a query.", show_default=False)]
_Storage = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--option",
        metavar="NAME=VALUE",
        help="A setting of S3 as in state_storage; may be repeated. Give secrets as env:NAME or file:/path.",
        show_default=False,
    ),
]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HEADER = ("shard", "versions", "entries", "tombstones", "bytes", "runs", "segments")

state = typer.Typer(help="Look at the keyed state of streaming queries, and reshard it.", no_args_is_help=True)


@state.command()
def show(
    location: _Location,
    *,
    name: Annotated[str | None, typer.Option(help="Only this operator (name=… of the function).")] = None,
    version: Annotated[
        int | None, typer.Option(min=0, help="Show the state after this micro-batch; by default the last one.")
    ] = None,
    rows: Annotated[int, typer.Option(min=0, help="Also show at most this many rows, with their counts.")] = 0,
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="Show the rows with this value; may be repeated. Reads all files."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--verify", help="Read every file of every version that is kept. Exit code 1 if damaged.")
    ] = False,
    option: _Storage = None,
    as_json: Json = False,
) -> None:
    """Show the operators of a state location: shards, versions, sizes, counts, rows."""
    operator_state = _state(location, name or "", option)
    key_values = option_texts(key)
    names = [name] if name is not None else operators(operator_state)
    if not names:
        raise ConfigurationError(
            f"there is no state below {location!r}", advice="give the state_location of a query that was started"
        )
    if key_values and rows == 0:
        rows = 100
    reports: list[dict[str, Any]] = []
    damaged = False
    for each in names:
        of = replace(operator_state, name=each)
        # Verify before `report`, which raises at the first damaged manifest: `verify` lists all damaged files.
        verified = verify(of) if check else None
        damaged |= bool(verified and verified.problems)
        shown = None if verified and verified.problems else report(of, version)
        some = stored_rows(of, shown.version, rows, key_values) if shown and rows else None
        if as_json:
            reports.append(_json(each, shown, some, verified))
        else:
            say("\n".join(_texts(each, shown, some, verified)))
    if as_json:
        say(json.dumps({"location": location, "operators": reports}, indent=2, default=str))
    if damaged:
        raise typer.Exit(1)


@state.command()
def reshard(
    location: _Location,
    *,
    name: Annotated[str, typer.Option(help="The operator (name=… of the function).", show_default=False)],
    shards: Annotated[int, typer.Option(min=1, help="The new number of shards.", show_default=False)],
    option: _Storage = None,
) -> None:
    """Give the state of a stopped query another number of shards. The query goes on with its checkpoint."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=Console(file=sys.stderr)) as bar:
        task = bar.add_task("shards", total=shards)
        done = reshard_state(_state(location, name, option), shards, lambda number: bar.update(task, completed=number))
    say(
        f"{name}: {done.before} shards are now {done.after}, with {done.entries:,} entries in {done.size:,} bytes; the "
        f"last micro-batch in the state is {done.version}"
    )


def _state(location: str, name: str, option: list[str] | None) -> OperatorState:
    return OperatorState(location, name, storage_settings(option, "stateStorage."))


# ---- output


def _texts(
    name: str, shown: OperatorReport | None, rows: Sequence[StoredRow] | None, verified: StateVerification | None
) -> list[str]:
    texts = [] if shown is None else _report(shown)
    if shown is not None and rows is not None:
        texts.append(_rows(shown, rows))
    if verified is not None:
        what = f"{verified.segments:,} segments of {verified.versions:,} versions, {verified.size:,} bytes"
        texts.append(f"{name}: read {what}: {'damaged' if verified.problems else 'no damage'}")
        texts += [f"  {problem}" for problem in verified.problems]
    if verified is not None and verified.problems:
        texts.append(
            "  next step: restore the state location and the checkpoint from one backup, or start the "
            "query with a new checkpoint and a new state location"
        )
    return texts


def _report(shown: OperatorReport) -> list[str]:
    info = shown.info
    keys = ", ".join(f"{key} {kind}" for key, kind in info.keys)
    at = "no version can be read" if shown.version is None else f"after micro-batch {shown.version:,}"
    head = f"{shown.name}: {info.operator} by {keys}, {at}"
    body = [_cells(str(shard.number), shard) for shard in shown.shards]
    if len(shown.shards) > 1:
        body.append(_cells("total", shown.total))
    counts = ", ".join(f"{what} {many:,}" for what, many in shown.total.counts.items()) or "none"
    return [
        printable(head),
        printable(f"  query {info.query}, since micro-batch {info.first:,}, generation {info.generation}"),
        text_table(_HEADER, body, right=range(2, len(_HEADER))),
        f"  largest shard: {shown.skew:.2f} times the mean; counted in this micro-batch: {counts}",
    ]


def _cells(shard: str, shard_report: ShardReport) -> list[str]:
    return [
        shard,
        "none" if shard_report.first is None else f"{shard_report.first:,} to {shard_report.last:,}",
        f"{shard_report.entries:,}",
        "unknown" if shard_report.tombstones is None else f"{shard_report.tombstones:,}",
        f"{shard_report.size:,}",
        f"{shard_report.runs:,}",
        f"{shard_report.segments:,}",
    ]


def _rows(shown: OperatorReport, rows: Sequence[StoredRow]) -> str:
    columns = [name for name, _ in shown.columns if not name.startswith("__forebay_")]
    timed = any(row.touched is not None for row in rows)
    header = [*columns, "count", "order", *(["last event"] if timed else [])]
    body = [
        [
            *(_cell(row.row.get(name)) for name in columns),
            str(row.count),
            ", ".join(map(_cell, row.order)),
            *([_time(row.touched)] if timed else []),
        ]
        for row in rows
    ]
    return text_table(header, body, right={len(columns)})


def _cell(value: object) -> str:
    return "NULL" if value is None else str(value)


def _time(microseconds: int | None) -> str:
    return "" if microseconds is None else (_EPOCH + timedelta(microseconds=microseconds)).isoformat()


def _json(
    name: str, shown: OperatorReport | None, rows: Sequence[StoredRow] | None, verified: StateVerification | None
) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": name}
    if shown is not None:
        facts |= asdict(shown) | {"total": asdict(shown.total), "skew": shown.skew}
    if rows is not None:
        facts["rows"] = [asdict(row) for row in rows]
    if verified is not None:
        facts["verified"] = asdict(verified)
    return facts
