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
from forebay.errors import ConfigurationError, ContractError, RetriableError, printable
from forebay.inspection.offsets import Offsets, SplitOffset
from forebay.inspection.offsets import offsets as offsets_of
from forebay.sources.kafka.split import KafkaSplit, TopicPartition
from forebay.text_tables import text_table

if TYPE_CHECKING:
    from forebay.sources.kafka.lag import Lag, LagReader, PartitionLag, ReadPosition

_FORMAT: Final = "forebay_kafka"
_SERVERS: Final = "kafka.bootstrap.servers"
_HEADER: Final = ("topic", "partition", "position", "end", "lag", "note")
_LAG_EXCEEDED: Final = 3
"""Exit code for a lag above `--max-lag`, or an unknown lag."""


@dataclass(frozen=True)
class LagReport:
    """The lag of a query (`kind` is "checkpoint") or of a consumer group ("group") at one time."""

    kind: str
    name: str
    servers: str
    lag: Lag

    def __str__(self) -> str:
        rows = [_row(partition) for partition in self.lag.partitions]
        total = f"{len(rows):,} partition{'' if len(rows) == 1 else 's'}"
        rows.append(("total", total, "", "", f"{self.lag.total:,}", ""))
        columns = 6 if any(row[-1] for row in rows) else 5  # without notes, no column of notes
        table = text_table(_HEADER[:columns], [row[:columns] for row in rows], right=range(1, 5))
        return "\n".join([f"{self.kind} {self.name}, brokers {self.servers}", table, *self.lag.notes])

    def to_json(self) -> str:
        """Return the report as one line of JSON."""
        partitions = [asdict(partition) for partition in self.lag.partitions]
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
    group: Annotated[str | None, typer.Option(help="A consumer group, by its committed offsets.")] = None,
    bootstrap_servers: Annotated[
        str | None, typer.Option("--bootstrap-servers", "-b", help="The brokers: host:port, separated by commas.")
    ] = None,
    option: Options = None,
    watch: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", help="Repeat at this interval until Ctrl-C.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    max_lag: Annotated[
        int | None, typer.Option(min=0, help="Exit with code 3 if the total lag is higher, or unknown for a partition.")
    ] = None,
) -> None:
    """Show how far a streaming query, or a consumer group, is behind its topics: partition by partition."""
    if checkpoint is None and group is None:
        raise typer.BadParameter("give --checkpoint DIRECTORY or --group NAME")
    if watch is not None and max_lag is not None:
        raise typer.BadParameter("--max-lag cannot be combined with --watch")
    reader = _reader(_options(option, bootstrap_servers))
    asked: list[Callable[[], LagReport]] = []
    if checkpoint is not None:
        directory = checkpoint
        asked.append(
            lambda: LagReport("checkpoint", directory, reader.servers, reader.of_positions(_positions(directory)))
        )
    if group is not None:
        name = group
        asked.append(lambda: LagReport("group", name, reader.servers, reader.of_group(name)))
    try:
        reports = _shown(lambda: [ask() for ask in asked], LagReport.to_json if as_json else str, watch)
    finally:
        reader.close()
    if max_lag is not None:
        _check_lag(reports, max_lag)


def _check_lag(reports: Sequence[LagReport], most: int) -> None:
    worst = max((report.lag.total for report in reports), default=0)
    unknown = [partition for report in reports for partition in report.lag.partitions if partition.lag is None]
    if worst > most:
        say(f"forebay: the total lag is {worst:,}, above --max-lag {most:,}", err=True)
    for partition in unknown:
        say(f"forebay: the lag of {partition.topic}/{partition.partition} is unknown: {partition.note}", err=True)
    if worst > most or unknown:
        raise typer.Exit(_LAG_EXCEEDED)


# ---- input


def _options(option: list[str] | None, servers: str | None) -> Mapping[str, str]:
    options = option_texts(option)
    named = {name for name in options if name.lower() == _SERVERS}
    if any(name.lower() == "kafka.group.id" for name in options):
        raise typer.BadParameter("use --group NAME instead of -o kafka.group.id")
    if servers is not None and named:
        raise typer.BadParameter(f"the brokers are given twice: --bootstrap-servers and -o {_SERVERS}")
    if servers is None and not named:
        raise typer.BadParameter(
            "only the brokers know the ends of partitions: give --bootstrap-servers HOST:PORT; without brokers, "
            "`forebay offsets CHECKPOINT` shows the positions of a query"
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


def _positions(directory: str) -> list[ReadPosition]:
    """Return the positions of the query with this checkpoint directory.

    A partition occurs twice if two sources of the query read it.
    """
    from forebay.sources.kafka.lag import ReadPosition

    offsets = offsets_of(directory)
    positions = []
    for each in offsets.splits:
        if each.source.partition(" ")[0] == _FORMAT and isinstance(each.position, int):
            topic_id = each.fields.get("topic_id")
            positions.append(
                ReadPosition(
                    _partition(directory, each), each.position, topic_id if isinstance(topic_id, str) else None
                )
            )
    if not positions:
        raise _without_positions(directory, offsets)
    return positions


def _partition(directory: str, offset: SplitOffset) -> TopicPartition:
    try:
        split = KafkaSplit.from_json({"v": KafkaSplit.version, "id": offset.split, "position": offset.position})
    except ContractError as error:
        raise ConfigurationError(
            f"the last offset in {directory} is damaged: {error.message}",
            option="--checkpoint",
            advice="restore the checkpoint from a backup; `forebay offsets` shows its content",
        ) from error
    return split.topic_partition


def _without_positions(directory: str, offsets: Offsets) -> ConfigurationError:
    if any(_of_sparks_source(other) for other in offsets.others):
        return ConfigurationError(
            f"{directory} is a checkpoint of Spark's own Kafka source, whose lag forebay does not show",
            option="--checkpoint",
            advice='start the query with format("forebay_kafka"): the query continues at these offsets, and this '
            "command then shows the lag",
        )
    why = "; ".join([] if offsets.micro_batch is not None else ["no micro-batch is planned yet"])
    why = why or "; ".join(
        offsets.notes or [f"it reads {', '.join(sorted({split.source for split in offsets.splits}))}"]
    )
    return ConfigurationError(
        f"{directory} has no position of {_FORMAT}: {why}",
        option="--checkpoint",
        advice="give the checkpoint of a started query of this source; `forebay offsets` shows its content",
    )


def _of_sparks_source(offset: str) -> bool:
    try:
        topics = json.loads(offset)
    except (ValueError, RecursionError):
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


# ---- output


def _shown(
    ask: Callable[[], Sequence[LagReport]], words: Callable[[LagReport], str], every: float | None
) -> Sequence[LagReport]:
    """Print the lag reports that `ask` returns, once or every `every` seconds; return the last ones.

    `words` makes the text of a report.
    """
    reports = ask()  # an error of the first request ends the command
    with _screen(watching=every is not None and words is str) as show:
        try:
            show("\n".join(map(words, reports)))
            while every is not None:
                time.sleep(every)
                try:
                    reports = ask()
                    show("\n".join(map(words, reports)))
                except RetriableError as error:  # wait for the brokers
                    show(str(error)) if words is str else say(f"forebay: {error}", err=True)
        except KeyboardInterrupt:  # ends `--watch`
            pass
    return reports


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


def _row(partition: PartitionLag) -> tuple[str, str, str, str, str, str]:
    end, behind = ("?" if number is None else f"{number:,}" for number in (partition.end, partition.lag))
    return partition.topic, str(partition.partition), f"{partition.position:,}", end, behind, partition.note
