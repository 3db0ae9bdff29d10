# SPDX-License-Identifier: Apache-2.0
"""`forebay index`: objects of several datasources, their log, their index and their files."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from forebay.cli.arguments import Json, imported, option_texts, say, storage_settings
from forebay.errors import ConfigurationError
from forebay.inspection.index_report import RUN_HEADER, index_page, run_cells
from forebay.inspection.metrics import alert_metrics
from forebay.options.secret import Secret
from forebay.retry import RetryPolicy
from forebay.table.index.daemon import CatchUp, IndexDaemon
from forebay.table.index.definition import ObjectType
from forebay.table.index.follower import FullRule
from forebay.table.index.gc import VERSIONS, collect
from forebay.table.index.log import KEPT
from forebay.table.index.monitor import Alert, Limits
from forebay.table.index.node import OWNER, SearchNode
from forebay.table.index.pipelines import IndexStore
from forebay.table.index.plan import make_plan
from forebay.table.index.runs import JOBS, graph_text, runs
from forebay.table.index.status import Status, status
from forebay.table.index.types import SparkType
from forebay.table.index.verify import Verification, verify
from forebay.table.index.why import explain
from forebay.text_tables import text_table

_Location = Annotated[str, typer.Argument(help="The location of the Funnel.", show_default=False)]
_Name = Annotated[str, typer.Argument(help="The name of the object type.", show_default=False)]
_Storage = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--option",
        metavar="NAME=VALUE",
        help="A setting of S3 as in storage; may be repeated. Give secrets as env:NAME or file:/path.",
        show_default=False,
    ),
]

_Definition = Annotated[
    str, typer.Argument(metavar="MODULE:NAME", help="The ObjectType, where Python finds it.", show_default=False)
]
_DropEdits = Annotated[
    list[str] | None,
    typer.Option("--drop-edits", metavar="PROPERTY", help="Its edits need not count any more; may be repeated."),
]

index = typer.Typer(help="Objects of several datasources: commit, look, prove, explain, collect.", no_args_is_help=True)


@index.command("status")
def show_status(location: _Location, name: _Name, *, option: _Storage = None, as_json: Json = False) -> None:
    """Show the datasources of an object type, the log, and the index of each pipeline."""
    index_status = status(_index(location, name, option))
    say(_status_json(index_status) if as_json else str(index_status))


@index.command()
def commit(  # noqa: PLR0913 - options of a command
    location: _Location,
    name: _Name,
    datasource: Annotated[str, typer.Argument(help="The datasource.", show_default=False)],
    path: Annotated[str, typer.Argument(help="What Spark reads: a file, a directory, a table.", show_default=False)],
    *,
    kind: Annotated[str, typer.Option(help="snapshot, append, update or delete.", show_default=False)],
    transaction: Annotated[str | None, typer.Option(help="The id of the transaction.", show_default=False)] = None,
    read_format: Annotated[str, typer.Option("--format", help="The format of the files.")] = "parquet",
    read: Annotated[
        list[str] | None,
        typer.Option(
            "-r",
            "--read-option",
            metavar="NAME=VALUE",
            help="An option of the reader, or schema=…, its columns and types; may be repeated.",
        ),
    ] = None,
    allow_empty: Annotated[bool, typer.Option(help="A snapshot without rows may delete all rows.")] = False,
    adopt: Annotated[bool, typer.Option(help="Take over a datasource that a streaming query feeds.")] = False,
    option: _Storage = None,
) -> None:
    """Commit files to a datasource of an object type that was defined before, and bring its index up to date."""
    from forebay.spark.index.funnel import commit_files

    done = commit_files(
        _index(location, name, option),
        datasource,
        path,
        read_format,
        option_texts(read),
        kind=kind,
        transaction=transaction,
        allow_empty=allow_empty,
        adopt=adopt,
    )
    counts = ", ".join(f"{count:,} {what}" for what, count in done.counts.items() if count) or "nothing changed"
    what = f"fact {done.number} of the log" if done.applied else "it was committed before"
    say(f"{name}.{datasource}: transaction {done.transaction}: {what}; {counts}")


@index.command("flush")
def flush_pending(
    location: _Location,
    name: _Name,
    *,
    if_due: Annotated[
        bool, typer.Option("--if-due", help="Only if 1,000 changes are pending, or one for 6 hours.")
    ] = False,
    option: _Storage = None,
) -> None:
    """Fold pending edits of users into the state of an object type, and bring its index up to date."""
    store = _index(location, name, option)
    edits = status(store).edits
    if not edits.pending or (if_due and edits.due is None):
        since = f" since {edits.oldest}; no flush is due" if edits.oldest else ""
        say(f"{name}: {edits.pending:,} edits are pending{since}")
        return
    from forebay.spark.index.funnel import flush_edits

    done = flush_edits(store)
    edits = status(store).edits
    say(
        f"{name}: fact {done.number} of the log has all edits up to {edits.folded}; {edits.dead_letters:,} dead letters"
    )


@index.command("plan")
def show_plan(
    location: _Location, name: _Name, definition: _Definition, *, drop_edits: _DropEdits = None, option: _Storage = None
) -> None:
    """Say what a definition needs: INCREMENTAL, FULL, REPLACEMENT, or REFUSED with exit code 1."""
    plan = make_plan(_index(location, name, option), _definition(definition, name), FullRule(), drop_edits or ())
    say(f"{name} {plan}")
    if plan.kind == "REFUSED":
        raise typer.Exit(1)


@index.command("replace")
def replace_definition(
    location: _Location,
    name: _Name,
    definition: _Definition,
    *,
    drop_edits: _DropEdits = None,
    swap: Annotated[bool, typer.Option(help="Let it serve; else it is built and proven.")] = True,
    option: _Storage = None,
) -> None:
    """Build an index with another definition, prove it, and let it serve. Exit code 1: commit datasources first."""
    from forebay.spark.index.funnel import replace_index

    store, new_definition = _index(location, name, option), _definition(definition, name)
    replacement = replace_index(store, new_definition, drop_edits=drop_edits or (), swap=swap)
    say(f"{name}: {replacement}")
    if replacement.waits:
        raise typer.Exit(1)


@index.command("verify")
def prove(
    location: _Location,
    name: _Name,
    *,
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Compare what a node with this cache, which no process uses, answers, not the files of the store."
        ),
    ] = None,
    replacement: Annotated[bool, typer.Option("--replacement", help="Compare the replacement that is built.")] = False,
    option: _Storage = None,
    as_json: Json = False,
) -> None:
    """Compare the index with the states of all datasources, by a scan of both. Exit code 1 if they differ."""
    store = _index(location, name, option)
    if cache is None:
        verification = verify(store, replacement=replacement)
    else:
        # A new node would be proven, and not the one that is meant. `is_file` fails for a name that is too long.
        if not os.path.isfile(cache / OWNER):
            raise ConfigurationError(
                f"{str(cache)!r} is no cache of a node",
                option="cache",
                advice="give the cache of a SearchNode; without --cache the files of the store are compared",
            )
        with SearchNode(location, name, cache=cache, storage=store.storage) as node:
            verification = verify(store, node.view())
    _say_verification(name, verification, as_json)


def _say_verification(what: str, verification: Verification, as_json: bool) -> None:
    say(json.dumps(asdict(verification), indent=2) if as_json else f"{what} {verification}")
    if not verification.is_equal:
        raise typer.Exit(1)


@index.command()
def opensearch(  # noqa: PLR0913 - options of a command
    location: _Location,
    name: _Name,
    *,
    hosts: Annotated[
        list[str],
        typer.Option(
            help="The URL of OpenSearch; may be repeated. Give one with a password as env:NAME or file:/path."
        ),
    ],
    alias: Annotated[
        str | None, typer.Option("--name", help="The alias; else the object type in lower case.", show_default=False)
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting of a new index: number_of_shards=3; may be repeated."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Build the whole index again.")] = False,
    prove: Annotated[bool, typer.Option("--verify", help="Compare all documents with the states instead.")] = False,
    option: _Storage = None,
    as_json: Json = False,
) -> None:
    """Write what has changed into OpenSearch; or prove that it is equal to the states: exit code 1 if they differ."""
    from forebay.table.index.opensearch import OpenSearchIndex

    storage, urls = _index(location, name, option).storage, [Secret(each).reveal() for each in hosts]
    second = OpenSearchIndex(location, name, urls, name=alias, settings=option_texts(setting), storage=storage)
    if not prove:
        version = second.catch_up(full=full)
        say(json.dumps(asdict(version)) if as_json else f"{name}: OpenSearch has fact {version.data} of the log")
        return
    _say_verification(f"{name} in OpenSearch:", second.verify(), as_json)


@index.command()
def why(
    location: _Location,
    name: _Name,
    key: Annotated[
        list[str], typer.Argument(help="The key: its value, or NAME=VALUE for each column.", show_default=False)
    ],
    *,
    option: _Storage = None,
    as_json: Json = False,
) -> None:
    """Explain an object: its row in each datasource, the rule, and the segment that answers. Reads files of a shard."""
    store = _index(location, name, option)
    explanation = explain(store, _key(key, store.definition(store.head().serving).codec.columns))
    say(json.dumps(_plain(asdict(explanation)), indent=2, allow_nan=False) if as_json else str(explanation))


def _plain(value: Any) -> Any:  # noqa: ANN401 - values of properties
    """Return values as those that JSON has: binary ones as hexadecimal digits, others that it lacks as texts."""
    match value:
        case Mapping():
            keys = (key if isinstance(key, str | int) else str(_plain(key)) for key in value)
            return dict(zip(keys, map(_plain, value.values()), strict=True))
        case list() | tuple():
            return [_plain(each) for each in value]
        case bytes():
            return value.hex()
        case float() if not math.isfinite(value):
            return str(value)
        case str() | int() | float() | None:
            return value
    return str(value)


@index.command()
def gc(
    location: _Location,
    name: _Name,
    *,
    keep: Annotated[int, typer.Option(min=1, help="Facts of the log to keep.")] = KEPT,
    versions: Annotated[int, typer.Option(min=1, help="Versions of the index to keep.")] = VERSIONS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    option: _Storage = None,
) -> None:
    """Remove old facts and versions, and files that nothing names. Writers and nodes may go on meanwhile."""
    garbage = collect(_index(location, name, option), keep=keep, versions=versions, dry_run=dry_run)
    if dry_run:
        say("\n".join([*garbage.facts, *garbage.files]) or "nothing to remove")
        return
    say(f"{name}: removed {len(garbage.facts):,} facts and {len(garbage.files):,} files")


@index.command("run")
def run_daemon(  # noqa: PLR0913 - options of a command
    location: _Location,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]…", help="Object types; none: all.", show_default=False)
    ] = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Do one round. Exit code 1 if a job is not well.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two rounds.")] = 30.0,
    opensearch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Keep the objects in this OpenSearch too; may be repeated. With a password: env:NAME or file:/path.",
        ),
    ] = None,
    delay: Annotated[float, typer.Option(help="Alert: seconds from a commit until a version serves it.")] = 600.0,
    duration: Annotated[float, typer.Option(help="Alert: seconds that a run takes.")] = 3600.0,
    edits: Annotated[
        float, typer.Option(help="Alert: seconds that an edit of a user is pending; a flush is due after 6 hours.")
    ] = 7 * 3600.0,
    metrics: Annotated[bool, typer.Option("--metrics", help="Send alerts to OpenTelemetry too.")] = False,
    option: _Storage = None,
) -> None:
    """Keep object types up to date and watch them, until SIGTERM: flush, catch up, replace, retry, collect, alert."""
    daemon = IndexDaemon(
        location,
        names or (),
        storage=storage_settings(option, "storage."),
        key_hashes=_key_hashes,
        followers=partial(_open_search, location, opensearch or [], storage_settings(option, "storage.")),
        limits=Limits(delay=delay, duration=duration, edits=edits),
        alerts=[_say_alert],
        each_round=alert_metrics() if metrics else None,
        every=every,
    )
    if once:
        well = daemon.step()
        outcome = "no job failed" if well else "not all is well; see `forebay index runs --failed` and the messages"
        say(f"did one round: {outcome}")
        raise typer.Exit(0 if well else 1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("opensearch").setLevel(logging.WARNING)  # else it tells each request
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: daemon.stop())
    daemon.run()
    say("stopped")


@index.command("runs")
def show_runs(
    location: _Location,
    name: _Name,
    *,
    failed: Annotated[bool, typer.Option("--failed", help="Only runs that failed.")] = False,
    job: Annotated[str | None, typer.Option(help=f"Only of {', '.join(JOBS[:-1])} or {JOBS[-1]}.")] = None,
    option: _Storage = None,
    as_json: Json = False,
) -> None:
    """Show the last runs of the jobs of an object type, oldest first."""
    if job not in (None, *JOBS):
        raise ConfigurationError(f"there is no job {job!r}", option="job", advice=f"give one of {', '.join(JOBS)}")
    store = _index(location, name, option)
    known = runs(store)
    if not known:
        store.head()  # an error if there is no such object type
    matching = [run for run in known if job in (None, run.job) and (run.error or not failed)]
    if as_json:
        say(json.dumps([asdict(run) for run in matching], indent=2))
        return
    say(text_table(RUN_HEADER, [run_cells(run) for run in matching], right={0, 3, 4}) if matching else "no run matches")


@index.command()
def show(
    location: _Location,
    name: _Name,
    run: Annotated[int, typer.Argument(help="The number of a run.", show_default=False)],
    *,
    option: _Storage = None,
) -> None:
    """Show what became of the data of a run, from the datasource to each database, with the error of a failed job."""
    store = _index(location, name, option)
    known = runs(store)
    chosen = next((each for each in known if each.number == run), None)
    if chosen is None:
        if not known:
            store.head()  # an error if there is no such object type
        raise ConfigurationError(
            f"{name!r} has no run {run}",
            option="run",
            advice=f"give one that `forebay index runs {location} {name}` shows",
        )
    say(graph_text(chosen, known, name))


@index.command("report")
def write_page(
    location: _Location,
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Object types.", show_default=False)],
    *,
    file: Annotated[Path, typer.Option("-f", "--file", help="The HTML file to write.")] = Path("forebay-index.html"),
    option: _Storage = None,
) -> None:
    """Write the jobs, versions, delay and alerts of object types as one HTML file."""
    page = index_page([_index(location, name, option) for name in names])
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"the report cannot be written: {error}", option="file", advice="give another file"
        ) from error
    say(str(file))


def _key_hashes(definition: ObjectType, keys: Sequence[tuple[Any, ...]]) -> Sequence[int]:
    from forebay.spark.index.funnel import spark_key_hashes

    return spark_key_hashes(definition, keys)


def _open_search(location: str, hosts: list[str], storage: Mapping[str, object], name: str) -> list[CatchUp]:
    if not hosts:
        return []
    from forebay.table.index.opensearch import OpenSearchIndex

    urls = [Secret(each).reveal() for each in hosts]
    # The daemon comes again by itself: it need not wait long for one database.
    return [OpenSearchIndex(location, name, urls, storage=storage, retry=RetryPolicy(timeout=10.0))]


def _say_alert(alert: Alert) -> None:
    say(f"{alert.at} {alert}", err=True)


def _index(location: str, name: str, option: list[str] | None) -> IndexStore:
    return IndexStore(location, name, storage_settings(option, "storage."))


def _definition(target: str, name: str) -> ObjectType:
    definition = imported(target)
    if not isinstance(definition, ObjectType) or definition.name != name:
        defined = f"defines {definition.name!r}" if isinstance(definition, ObjectType) else f"is {definition!r:.100}"
        raise ConfigurationError(
            f"{target} {defined}, and is not the definition of {name!r}",
            option="definition",
            advice="write the module and the name of an ObjectType, such as shop.orders:order",
        )
    return definition


def _key(texts: list[str], kinds: Mapping[str, SparkType]) -> Any:  # noqa: ANN401 - a value of any key type
    if len(kinds) == 1 and len(texts) == 1:
        ((name, kind),) = kinds.items()
        return _value(texts[0].removeprefix(f"{name}="), name, kind)
    named = dict(text.partition("=")[::2] for text in texts if "=" in text)
    if len(named) != len(texts) or set(named) != set(kinds):
        columns = ", ".join(f"{name} {kind.text}" for name, kind in kinds.items())
        raise ConfigurationError(
            f"{' '.join(texts)!r} is no key: the key is ({columns})",
            option="key",
            advice=f"write {' '.join(f'{name}=VALUE' for name in kinds)}",
        )
    return {name: _value(text, name, kinds[name]) for name, text in named.items()}


_HINTS = {"timestamp": ", with a time zone, as 2026-11-28T10:00:00Z", "binary": " in hexadecimal digits"}
"""How values of a key are written, where that is not as Spark shows them."""


def _value(text: str, name: str, kind: SparkType) -> Any:  # noqa: ANN401 - a value of any key type
    try:
        value = kind.parse(text)
        kind.encode(value)  # an error for a number that the type does not have
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ConfigurationError(
            f"{text!r} is no {kind.text}",
            option="key",
            advice=f"write a {kind.text} for {name!r}{_HINTS.get(kind.name, '')}",
        ) from error
    return value


def _status_json(index_status: Status) -> str:
    pipelines = [
        {
            "pipeline": each.version.pipeline,
            "version": each.version.number,
            "data": each.version.data,
            "objects": each.version.count,
            "behind": each.behind,
            "serving": each.serving,
            "role": each.role,
            "waits": each.waits,
            "decision": each.version.decision,
            "reason": each.version.reason,
            "bytes": each.size,
        }
        for each in index_status.pipelines
    ]
    facts = {
        "object_type": index_status.object_type,
        "head": index_status.head.number,
        "datasources": [asdict(each) for each in index_status.datasources],
        "pipelines": pipelines,
        "edits": asdict(index_status.edits),
    }
    return json.dumps(facts, indent=2)
