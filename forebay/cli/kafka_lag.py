# SPDX-License-Identifier: Apache-2.0
"""`forebay kafka lag`: how far a streaming query, or a consumer group, is behind its topics."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forebay.cli.arguments import Options, option_texts, say
from forebay.errors import ConfigurationError, RetriableError
from forebay.looking.offsets import Offsets
from forebay.looking.offsets import offsets as offsets_of
from forebay.looking.tables import printable, text_table
from forebay.sources.kafka.split import TopicPartition

if TYPE_CHECKING:
    from forebay.sources.kafka.lag import Lag, LagReader, PartitionLag, Standing

_FORMAT: Final = "forebay_kafka"
_SERVERS: Final = "kafka.bootstrap.servers"
_HEADER: Final = ("topic", "partition", "position", "end", "lag")
_TOO_MUCH: Final = 3
"""The exit code where the lag is more than it may be."""


@dataclass(frozen=True)
class Look:
    """How far one reader is behind, now.

    Args:
        kind: What it is: `checkpoint` or `group`.
        name: Which one.
        servers: The brokers that were asked.
        lag: What was found.
    """

    kind: str
    name: str
    servers: str
    lag: Lag

    def __str__(self) -> str:
        rows = [_row(one) for one in self.lag.partitions]
        total = f"{len(rows):,} partition{'' if len(rows) == 1 else 's'}"
        rows.append(("total", total, "", "", f"{self.lag.total:,}", ""))
        # Words to the left and numbers to the right, as one compares them; the notes only where there are some.
        notes = any(row[-1] for row in rows)
        widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
        cells = [
            [row[0], *(row[at].rjust(max(widths[at], len(_HEADER[at]))) for at in range(1, 5)), row[5]] for row in rows
        ]
        header = [
            _HEADER[0],
            *(name.rjust(width) for name, width in zip(_HEADER[1:], widths[1:], strict=False)),
            "note",
        ]
        table = text_table(header, cells) if notes else text_table(header[:-1], [row[:-1] for row in cells])
        return "\n".join([f"{self.kind} {self.name}, brokers {self.servers}", table, *self.lag.notes])

    def to_json(self) -> str:
        """Return it for machines, in one line."""
        partitions = [asdict(one) for one in self.lag.partitions]
        return json.dumps(
            {
                "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
                self.kind: self.name,
                "lag": self.lag.total,
                "partitions": partitions,
                "notes": self.lag.notes,
            }
        )


def lag(
    *,
    checkpoint: Annotated[
        str | None, typer.Option(help="The checkpoint directory of a streaming query that reads forebay_kafka.")
    ] = None,
    group: Annotated[str | None, typer.Option(help="A consumer group: what it has committed.")] = None,
    bootstrap_servers: Annotated[
        str | None, typer.Option("--bootstrap-servers", "-b", help="The brokers: host:port, between commas.")
    ] = None,
    option: Options = None,
    watch: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", help="Look again so often, until Ctrl-C.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    max_lag: Annotated[
        int | None, typer.Option(min=0, help="End with exit code 3 if the lag is more than that, or is not known.")
    ] = None,
) -> None:
    """Show how far a streaming query, or a consumer group, is behind its topics: partition by partition."""
    if checkpoint is None and group is None:
        raise typer.BadParameter("say whose lag: --checkpoint DIRECTORY or --group NAME")
    if watch is not None and max_lag is not None:
        raise typer.BadParameter("--max-lag is for one look, not with --watch")
    reader = _reader(_options(option, bootstrap_servers))
    asked: list[Callable[[], Look]] = []
    if checkpoint is not None:
        directory = checkpoint
        asked.append(lambda: Look("checkpoint", directory, reader.servers, reader.of_standings(_standings(directory))))
    if group is not None:
        name = group
        asked.append(lambda: Look("group", name, reader.servers, reader.of_group(name)))
    try:
        found = _shown(lambda: [ask() for ask in asked], Look.to_json if as_json else str, watch)
    finally:
        reader.close()
    if max_lag is not None:
        _check_lag(found, max_lag)


def _check_lag(found: Sequence[Look], most: int) -> None:
    worst = max((one.lag.total for one in found), default=0)
    unknown = [one for look in found for one in look.lag.partitions if one.lag is None]
    if worst > most:
        say(f"forebay: the lag is {worst:,}, more than {most:,}", err=True)
    for one in unknown:
        say(f"forebay: the lag of {one.topic}/{one.partition} is not known: {one.note}", err=True)
    if worst > most or unknown:
        raise typer.Exit(_TOO_MUCH)


# ---- what is asked


def _options(option: list[str] | None, servers: str | None) -> Mapping[str, str]:
    options = option_texts(option)
    named = {name for name in options if name.lower() == _SERVERS}
    if any(name.lower() == "kafka.group.id" for name in options):
        raise typer.BadParameter("say --group NAME instead of -o kafka.group.id")
    if servers is not None and named:
        raise typer.BadParameter(f"the brokers are given twice: --bootstrap-servers and -o {_SERVERS}")
    if servers is None and not named:
        raise typer.BadParameter(
            "only the brokers know how far partitions go: name them by --bootstrap-servers HOST:PORT; where a query "
            "stands is told without them by `forebay offsets CHECKPOINT`"
        )
    return options if servers is None else {**options, _SERVERS: servers}


def _reader(options: Mapping[str, str]) -> LagReader:
    try:
        from forebay.sources.kafka.lag import LagReader
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the package {error.name!r} is not installed", source=_FORMAT, advice='pip install "forebay[kafka]"'
        ) from error
    return LagReader(options)


def _standings(directory: str) -> list[Standing]:
    """Return where a query stands in each partition; two sources of it may read the same one.

    Raises:
        ConfigurationError: There is no checkpoint, or no position of this source in it.
    """
    from forebay.sources.kafka.lag import Standing

    found = offsets_of(directory)
    standings = []
    for each in found.splits:
        if each.source.partition(" ")[0] == _FORMAT and isinstance(each.position, int):
            topic_id = each.fields.get("topic_id")
            standings.append(
                Standing(TopicPartition.of(each.split), each.position, topic_id if isinstance(topic_id, str) else None)
            )
    if not standings:
        raise _without_positions(directory, found)
    return standings


def _without_positions(directory: str, found: Offsets) -> ConfigurationError:
    if any(_of_sparks_source(other) for other in found.others):
        return ConfigurationError(
            f"{directory} is the checkpoint of a query of Spark's own Kafka source, whose progress is not ours to tell",
            option="--checkpoint",
            advice='start the query with format("forebay_kafka"): it goes on in place, and then its lag is told',
        )
    why = "; ".join([] if found.micro_batch is not None else ["no micro-batch was planned yet"])
    why = why or "; ".join(found.notes or [f"it reads {', '.join(sorted({one.source for one in found.splits}))}"])
    return ConfigurationError(
        f"{directory} has no position of {_FORMAT}: {why}",
        option="--checkpoint",
        advice="give the checkpoint of a query that reads it and has begun; `forebay offsets` shows all of it",
    )


def _of_sparks_source(offset: str) -> bool:
    try:
        topics = json.loads(offset)
    except ValueError:
        return False
    return (
        isinstance(topics, dict)
        and bool(topics)
        and all(
            isinstance(partitions, dict)
            and all(number.isdecimal() and isinstance(at, int) for number, at in partitions.items())
            for partitions in topics.values()
        )
    )


# ---- how it is shown


def _shown(ask: Callable[[], Sequence[Look]], words: Callable[[Look], str], every: float | None) -> Sequence[Look]:
    """Show what is found, once or again and again; return what was found last."""
    found = ask()  # what is wrong from the start ends the command
    with _screen(watching=every is not None and words is str) as show:
        try:
            show("\n".join(map(words, found)))
            while every is not None:
                time.sleep(every)
                try:
                    found = ask()
                    show("\n".join(map(words, found)))
                except RetriableError as error:  # brokers come back
                    show(str(error)) if words is str else say(f"forebay: {error}", err=True)
        except KeyboardInterrupt:  # how one ends watching
            pass
    return found


@contextmanager
def _screen(*, watching: bool) -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=sys.stdout)
    if not (watching and console.is_terminal):
        yield say
        return
    with Live(console=console, auto_refresh=False) as live:

        def draw(text: str) -> None:
            drawn = Text(
                f"{datetime.now(UTC):%H:%M:%S} UTC, Ctrl-C ends\n{printable(text, lines=True)}",
                no_wrap=True,
                overflow="ellipsis",
            )
            live.update(drawn, refresh=True)

        yield draw


def _row(one: PartitionLag) -> tuple[str, str, str, str, str, str]:
    end, behind = ("?" if number is None else f"{number:,}" for number in (one.end, one.lag))
    return one.topic, str(one.partition), f"{one.position:,}", end, behind, one.note
