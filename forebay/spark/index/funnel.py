# SPDX-License-Identifier: Apache-2.0
"""`Funnel`: commits DataFrames, streams and files to the datasources of an object type, and follows with its index."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from os import PathLike
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as every user of PySpark writes it

from forebay.errors import ConfigurationError, DataError, FatalError, ForebayError, RetriableError, unwrap
from forebay.spark.changelog.columns import quoted
from forebay.spark.changelog.targets.changes import DELETED, LANE, SEQUENCE, ChangeOptions, Changes
from forebay.spark.changelog.targets.target import Target
from forebay.spark.index.launchers import digest_of, launch_builds, run_transaction
from forebay.spark.index.rows import (
    deleted_flag,
    key_columns,
    key_hashes,
    key_types,
    prepare,
    refuse_changelog,
    storable_columns,
)
from forebay.table.changelog.shape import CHANGE_TYPE, LOG
from forebay.table.changelog.shape import SEQUENCE as LOG_SEQUENCE
from forebay.table.changelog.state.typed_values import is_text
from forebay.table.index.definition import Datasource, ObjectType, refused
from forebay.table.index.edits import due
from forebay.table.index.flush import flush
from forebay.table.index.follower import SMALL, Follower, FullIf, FullRule
from forebay.table.index.gc import VERSIONS, Collected, collect
from forebay.table.index.log import KEPT, SHARDS, Entry, MovedError, StoppedError
from forebay.table.index.node import SearchNode
from forebay.table.index.pipelines import IndexStore, IndexVersion, fed_datasource
from forebay.table.index.plan import Plan, make_plan
from forebay.table.index.replacement import Replacement, begin_replacement, run_replacement
from forebay.table.index.runs import recorded
from forebay.table.index.status import Status, status
from forebay.table.index.transactions import (
    KINDS,
    Committed,
    Kind,
    Transaction,
    check_owner,
    commit,
    known_digest,
    refuse_other_rows,
    shard_tasks,
)
from forebay.table.index.verify import Verification, verify
from forebay.table.index.why import Explanation, explain

_TRIES: Final = 5
"""How often the difference of a transaction is computed if other processes change its datasource meanwhile."""


class Funnel:
    """Commits transactions to the datasources of an object type, and brings its index up to date.

    Nothing is written before the first transaction. Several processes may commit at the same time, each one to
    datasources of its own.

    Args:
        location: A directory that all machines share, or `s3://bucket/prefix`.
        object_type: The definition of the object type.
        storage: Settings of S3, as `stateStorage.*` of a stream.
        shards: The number of shards, fixed by the first transaction: one for each 1 or 2 million objects.
        full_threshold: The share of rows that a transaction changes from which the whole index is built; None: never.
        full_if: Whether this is the share of the rows of the `datasource`, or of the `objects`.
        small: Rows, and changed keys, up to which the driver does the work itself; a job of Spark starts slowly.

    Raises:
        ConfigurationError: An argument cannot be used.
    """

    def __init__(
        self,
        location: str | PathLike[str],
        object_type: ObjectType,
        *,
        storage: Mapping[str, object] | None = None,
        shards: int = 4,
        full_threshold: float | None = 0.8,
        full_if: FullIf = "datasource",
        small: int = SMALL,
    ) -> None:
        if not isinstance(object_type, ObjectType):
            raise refused("object_type", object_type, "give an ObjectType", what="the object type")
        for name, count, least, most in (("shards", shards, 1, SHARDS), ("small", small, 0, 1 << 30)):
            if isinstance(count, bool) or not isinstance(count, int) or not least <= count <= most:
                raise refused(name, count, f"give a whole number from {least} to {most:,}")
        if full_threshold is not None and not (isinstance(full_threshold, int | float) and 0 < full_threshold <= 1):
            raise refused("full_threshold", full_threshold, "give a share, such as 0.8, or None")
        if full_if not in ("datasource", "objects"):
            raise refused("full_if", full_if, "give 'datasource' or 'objects'")
        self.object_type = object_type
        self.index = IndexStore(location, object_type.name, storage)
        self._shards = shards
        self._rule = FullRule(None if full_threshold is None else Fraction(str(float(full_threshold))), full_if)
        self._small = small
        self._log = ""

    def commit(
        self,
        datasource: str,
        df: DataFrame,
        *,
        kind: Kind,
        transaction: str | None = None,
        allow_empty: bool = False,
        adopt: bool = False,
    ) -> Committed:
        """Commit a transaction to a datasource, and bring the index up to date.

        Args:
            datasource: The name of the datasource.
            df: The rows, each key once.
            kind: `snapshot`: all rows; keys that are missing are deleted. `append`, `update`: rows that replace those
                of their keys. `delete`: the keys to delete; other columns are not needed.
            transaction: An id, which stands for these rows: if it was committed already, nothing happens. Without
                one, each call is a new transaction.
            allow_empty: Whether a snapshot without rows may delete all rows.
            adopt: Commit to a datasource that a streaming query feeds. It has no owner then: that query goes on with
                its next micro-batch, unless another one has begun to feed it.

        Returns:
            What became of the transaction.

        Raises:
            ConfigurationError: A column, its type or an argument is wrong, or the id was committed with other rows.
                Nothing was committed.
            DataError: A key is NULL or comes twice, or a value does not fit its property: nothing was committed. Or the
                message says that the transaction is, and which row of a stream holds up the index.
            RetriableError: The store does not answer, or other processes have changed the datasource again and again.
                If the message says that it may be committed, commit again with the same `transaction`.
            FatalError: The log is not the one that this Funnel knows; nothing was committed.
        """
        source = self.object_type.datasource(datasource)
        if not isinstance(df, DataFrame):
            raise ConfigurationError(
                f"the rows are {type(df).__module__}.{type(df).__name__}, and no DataFrame of Spark",
                option="df",
                advice="give spark.createDataFrame(rows)",
            )
        if kind not in KINDS:
            raise ConfigurationError(f"unknown kind {kind!r}", option="kind", advice=f"give one of {', '.join(KINDS)}")
        if df.isStreaming:
            raise ConfigurationError(
                "the DataFrame is a stream",
                option="df",
                advice=f"use apply_changes(df, funnel.target({datasource!r}), …)",
            )
        if transaction is not None and not is_text(transaction):
            raise refused("transaction", transaction, "give a text, as '2026-11-28'", what="the transaction")
        refuse_changelog(df, source)
        name = uuid.uuid4().hex if transaction is None else transaction
        request = Transaction(datasource, name, kind, adopt=adopt, allow_empty=allow_empty)
        try:
            return self.apply(df, request)
        except Exception as error:
            unwrapped = unwrap(error)
            if unwrapped is None or unwrapped is error:
                raise
            raise unwrapped from error

    def apply(
        self,
        df: DataFrame,
        transaction: Transaction,
        deletes: Column | None = None,
        sequence: tuple[Column, Column] | None = None,
    ) -> Committed:
        """Commit a transaction, and bring the index up to date. Called by `commit` and by `IndexTarget`."""
        source = self.object_type.datasource(transaction.datasource)

        prepared = partial(prepare, df, deletes=deletes, sequence=sequence, delete=transaction.kind == "delete")

        def types() -> Mapping[str, str]:
            self._refuse_other_log("")
            check_owner({}, transaction)
            kinds = key_types(df, self.object_type, source)
            prepared(
                self.object_type.with_key_types(kinds), source, self._shards
            )  # refuses wrong rows before it writes
            return kinds

        def attempt(head: Entry, definition: ObjectType) -> Committed:
            check_owner(head.states, transaction)
            fed = fed_datasource(head, definition, self.object_type, transaction.datasource, storable_columns(df))
            try:
                rows, incoming = prepared(definition, fed, head.shards)
            except ConfigurationError as error:
                _say_needed(error, self.object_type, definition)
                raise
            known = known_digest(head, transaction)
            if known is not None:
                refuse_other_rows(transaction, known, digest_of(rows), incoming.columns_digest)
                return Committed(transaction.id, applied=False, number=head.number)
            tasks = shard_tasks(self.index, head, transaction, incoming)
            with self.index.log.reading(head):
                results = run_transaction(rows, tasks, self._small)
            return commit(self.index, head, transaction, tasks, results)

        try:
            head, definition = self._begun(types)
        except ForebayError as error:
            self._record_refused(transaction, error)
            raise
        with recorded(self.index, "commit", transaction.datasource) as run:
            run.did(since=head.number)
            for _ in range(_TRIES - 1):
                with suppress(MovedError):
                    committed = attempt(head, definition)
                    break
                head, definition = self._begun(types)
            else:
                committed = attempt(head, definition)
            run.did(since=committed.number - committed.applied, to=committed.number, counts=committed.counts)
        try:
            self.follow(df.sparkSession)
        except ForebayError as error:
            if isinstance(error, DataError) and not committed.applied and transaction.owner is not None:
                # The stream failed with this error when it committed the micro-batch. It goes on, so that a later
                # change can correct the row; until one does, each new micro-batch fails once.
                return committed
            _say_committed(error, f"this transaction of {transaction.datasource!r} is committed")
            raise
        return committed

    def _begun(self, types: Callable[[], Mapping[str, str]]) -> tuple[Entry, ObjectType]:
        """Return the newest fact of the log, and the definition that serves; see `IndexStore.begin`."""
        head, definition = self.index.begin(self.object_type, self._shards, types)
        self._refuse_other_log(head.log)
        self._log = head.log
        return head, definition

    def _refuse_other_log(self, log: str) -> None:
        if self._log not in ("", log):
            raise FatalError(
                f"the log of {self.object_type.name!r} below {self.index.location!r} is not the one that this "
                "Funnel knows; nothing was committed",
                option="location",
                advice="look whether the location is mounted; if it was removed on purpose, make a new Funnel",
            )

    def _record_refused(self, transaction: Transaction, error: ForebayError) -> None:
        """Record a commit that was refused before it began, as by another definition, if others may be well again."""
        with suppress(ForebayError):
            head = self.index.head()
            if self.index.definition(head.serving).feeds(transaction.datasource):
                with recorded(self.index, "commit", transaction.datasource) as run:
                    run.did(since=head.number)
                    raise error

    def flush(self, spark: SparkSession | None = None) -> Committed:
        """Fold the edits of users that are pending into the state of edits, and bring the index up to date.

        Edits are durable and visible before; a flush bounds how many a node has to read. `flush_due` says whether it is
        time. Any process may call it.

        Args:
            spark: A session, which hashes the keys; None: the active one, or a new one.

        Returns:
            What became of it; nothing was applied if no edit was pending.

        Raises:
            ConfigurationError: Nothing was committed to a datasource yet.
            RetriableError: The store does not answer.
        """
        session = spark or SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        done = flush(self.index, partial(key_hashes, session))
        try:
            self.follow(session)
        except ForebayError as error:
            if done.applied:
                _say_committed(error, "the edits are folded")
            raise
        return done

    def flush_due(self) -> str | None:
        """Return why edits should be flushed now; None if few are pending, and not for long.

        It is time if 1,000 changes are pending, or one for 6 hours.
        """
        return due(self.index.edits.after(self.index.head().edits.offset))

    def follow(self, spark: SparkSession | None = None, *, full: bool = False) -> IndexVersion:
        """Bring the index up to the head of the log. Each commit does; call it after one whose index failed.

        Args:
            spark: The session whose tasks build large parts; None: the active one, or this process.
            full: Build the whole index.
        """
        while True:
            pipeline = self.index.head().serving
            try:
                return self._follower(pipeline, spark).follow(full=full)
            except StoppedError:
                if self.index.head().serving == pipeline:
                    raise

    def plan(self, *, drop_edits: Collection[str] = ()) -> Plan:
        """Return what the definition of this funnel needs against the one that serves.

        Args:
            drop_edits: Properties whose edits by users need not count any more.
        """
        # A text would be a collection of letters.
        known = isinstance(drop_edits, Collection) and not isinstance(drop_edits, str)
        if not known or not all(isinstance(name, str) for name in drop_edits):
            example = [drop_edits] if isinstance(drop_edits, str) else ["status"]
            raise refused("drop_edits", drop_edits, f"give a list: {example!r:.100}")
        return make_plan(self.index, self.object_type, self._rule, drop_edits)

    def replace(
        self, spark: SparkSession | None = None, *, drop_edits: Collection[str] = (), swap: bool = True
    ) -> Replacement:
        """Build an index with the definition of this funnel behind the one that serves, prove it, and let it serve.

        Transactions go on meanwhile, and go into both. If this fails, waits for a commit or is killed, the index that
        serves goes on; `forebay index run` goes on with the replacement, or call this again. A replacement with another
        definition that is built is dropped; if the definition of this funnel serves, that is all.

        Args:
            spark: The session whose tasks build large parts; None: the active one, or this process.
            drop_edits: Properties whose edits by users need not count any more.
            swap: Whether it is to serve. Else it is built and proven, and a node with `pipeline=` can look at it.

        Returns:
            What became of it: it serves, or it says which datasources are to be committed first.

        Raises:
            ConfigurationError: The stored objects cannot have the definition; or a newer replacement was begun.
            DataError: A value does not fit the type that its property has now; the message has column and key.
            FatalError: The new index is not what the datasources say.
        """
        if not isinstance(swap, bool):
            raise refused("swap", swap, "give True or False")
        head = self.index.head()
        plan = self.plan(drop_edits=drop_edits)
        if plan.kind == "REFUSED":
            raise ConfigurationError(
                f"the definition of {self.object_type.name!r} cannot replace the one that serves below "
                f"{self.index.location!r}",
                option="object_type",
                advice="; ".join(plan.reasons),
            )
        if plan.kind != "REPLACEMENT":
            begin_replacement(self.index, None, head.serving)
            return Replacement(head.serving, serves=True, version=self.index.newest_version(head.serving))
        begun = begin_replacement(self.index, self.object_type, head.serving, swap=swap, drop_edits=drop_edits)
        return run_replacement(self.index, begun, partial(self._follower, spark=spark))

    def _follower(self, pipeline: str, spark: SparkSession | None) -> Follower:
        session = spark or SparkSession.getActiveSession()
        launch = None if session is None else launch_builds(session)
        return Follower(self.index, pipeline, self._rule, launch, self._small)

    def target(self, datasource: str) -> IndexTarget:
        """Return the target for `apply_changes`, which commits each micro-batch of a stream as a transaction.

        Raises:
            ConfigurationError: There is no such datasource.
        """
        return IndexTarget(self, self.object_type.datasource(datasource))

    def verify(self, node: SearchNode | None = None, *, replacement: bool = False) -> Verification:
        """Compare the index with the states of all datasources, by a scan of both.

        Args:
            node: A node, to compare the version that it answers from; None: the newest version in the store.
            replacement: Whether to compare the replacement that is built instead of the index that serves.

        Raises:
            ConfigurationError: There is no index yet, or `node` is no node.
        """
        if not isinstance(node, SearchNode | None):
            raise refused("node", node, "give a SearchNode, or None")
        return verify(self.index, None if node is None else node.view(), replacement=replacement)

    def why(self, key: object) -> Explanation:
        """Explain an object: its row in each datasource, the rule, and the segment that answers.

        Args:
            key: The value of the key; for several columns a tuple or a mapping.
        """
        return explain(self.index, key)

    def status(self) -> Status:
        """Return what there is: datasources, the log, and the index."""
        return status(self.index)

    def gc(self, *, keep: int = KEPT, versions: int = VERSIONS, dry_run: bool = False) -> Collected:
        """Remove old facts of the log, old versions, and files that nothing names.

        Args:
            keep: Facts of the log to keep.
            versions: Versions of the index to keep.
            dry_run: Only return what would be removed.
        """
        return collect(self.index, keep=keep, versions=versions, dry_run=dry_run)


class IndexTarget(Target):
    """A datasource of an object type. Each micro-batch of a stream is a transaction, committed exactly once.

    Made by `Funnel.target`. If the stream has `_sequence`, that is what orders the changes of a key, unless
    `sequence_by` is given: an older change that comes late changes nothing. `_change_type` marks deletes; without it,
    `apply_as_deletes` or the flag of the datasource does.
    """

    def __init__(self, funnel: Funnel, source: Datasource) -> None:
        self._funnel = funnel
        self._source = source

    def __repr__(self) -> str:
        return f"IndexTarget({self._funnel.object_type.name}.{self._source.name})"

    def options(self, df: DataFrame, options: ChangeOptions) -> ChangeOptions:
        """Return the options with `_sequence` as the order, and the flag of the datasource, if no others are given."""
        if options.apply_as_deletes is None and CHANGE_TYPE not in df.columns:
            options = replace(options, apply_as_deletes=deleted_flag(df, self._source))
        if options.sequence_by is None and LOG_SEQUENCE in df.columns:
            return replace(options, sequence_by=LOG_SEQUENCE, lane=LOG if LOG in df.columns else None)
        return options

    def _apply(self, changes: Changes, batch_id: int, query_id: str, *, adopt: bool) -> bool:
        if changes.history:
            raise ConfigurationError(
                "a datasource keeps the last row of each key, not a history",
                option="stored_as_scd_type",
                advice="leave out stored_as_scd_type",
            )
        keys = {field.name for field in key_columns(changes.df, self._funnel.object_type, self._source).values()}
        if keys != set(changes.keys):
            raise ConfigurationError(
                f"the changes have the key ({', '.join(changes.keys)}), and the datasource {self._source.name!r} has "
                f"the key ({', '.join(sorted(keys))})",
                option="keys",
                advice=f"give keys={sorted(keys)!r}",
            )
        transaction = Transaction(
            self._source.name, f"{query_id}/{batch_id}", "update", owner=query_id, batch=batch_id, adopt=adopt
        )
        sequence = None
        if changes.sequence is not None:
            lane = quoted(LANE) if LANE in changes.df.columns else F.lit(None).cast("string")
            sequence = quoted(SEQUENCE), lane
        return self._funnel.apply(changes.df, transaction, quoted(DELETED), sequence).applied


def _say_needed(error: ForebayError, own: ObjectType, serving: ObjectType) -> None:
    if own.with_key_types(serving.keys).fingerprint() != serving.fingerprint():
        error.message += "; another definition than that of this Funnel serves, and its columns are needed too"


def _say_committed(error: ForebayError, committed: str) -> None:
    """Let the error of an index that could not follow say that nothing needs to be committed again."""
    if isinstance(error, DataError):
        error.message += f"; {committed}, and the version before answers until another transaction corrects the row"
        return
    error.message += f"; {committed}, and the version before answers until the index follows"
    also = "" if error.advice is None or isinstance(error, RetriableError) else f"; {error.advice}"
    error.advice = f"call funnel.follow(), which the next commit does too; do not commit again{also}"


def commit_files(
    index: IndexStore,
    datasource: str,
    path: str,
    read_format: str,
    read_options: Mapping[str, str],
    **options: Any,  # noqa: ANN401 - of `Funnel.commit`
) -> Committed:
    """Commit what Spark reads from a path to a datasource of an object type that was defined before.

    Args:
        index: The store.
        datasource: The datasource.
        path: What Spark reads.
        read_format: The format of the files.
        read_options: Options of the reader; `schema`: columns and types of the rows, as `id bigint, city string`.
        options: See `Funnel.commit`.

    Raises:
        ConfigurationError: There is no such object type yet, or Spark cannot read the path.
        FatalError: Spark failed while it read the rows; this call committed nothing.
    """
    definition = index.definition(index.head().serving)
    spark = SparkSession.builder.appName("forebay index commit").getOrCreate()
    settings = dict(read_options)
    schema = settings.pop("schema", None)
    try:
        reader = spark.read.format(read_format).options(**settings)
        rows = (reader if schema is None else reader.schema(schema)).load(path)
    except (PySparkException, Py4JJavaError) as error:
        raise ConfigurationError(
            f"Spark cannot read {path!r} as {read_format}: {_shown(error)}",
            option="path",
            advice="check the path, --format and --read-option",
        ) from error
    try:
        return Funnel(index.location, definition, storage=index.storage).commit(datasource, rows, **options)
    except (PySparkException, Py4JJavaError) as error:
        raise FatalError(
            f"Spark failed while it read {path!r} as {read_format}: {_shown(error)}; this call committed nothing",
            option="path",
            advice="check --format, --read-option and the files; else look at the log of Spark, and commit again",
        ) from error


def _shown(error: PySparkException | Py4JJavaError) -> str:
    """Return what an error of Spark and its causes say, without stacks."""
    if isinstance(error, PySparkException):
        return str(error).strip().partition("\n")[0]
    lines, cause = [], error.java_exception
    while cause is not None:
        lines.append(cause.toString().strip().partition("\n")[0][:300])
        cause = cause.getCause()
    return " <- ".join(lines)


def flush_edits(index: IndexStore) -> Committed:
    """Flush the edits of an object type that was defined before; see `Funnel.flush`."""
    definition = index.definition(index.head().serving)
    spark = SparkSession.builder.appName("forebay index flush").getOrCreate()
    return Funnel(index.location, definition, storage=index.storage).flush(spark)


def replace_index(index: IndexStore, definition: ObjectType, **options: Any) -> Replacement:  # noqa: ANN401
    """Replace the index of an object type by one with another definition; see `Funnel.replace`."""
    spark = SparkSession.builder.appName("forebay index replace").getOrCreate()
    return Funnel(index.location, definition, storage=index.storage).replace(spark, **options)


def spark_key_hashes(definition: ObjectType, keys: Sequence[tuple[Any, ...]]) -> Sequence[int]:
    """Hash keys for a flush of `IndexDaemon`. Spark starts when the first one is due.

    Args:
        definition: The definition, with the types of the keys.
        keys: The values of the key columns of each key.
    """
    return key_hashes(SparkSession.builder.appName("forebay index").getOrCreate(), definition, keys)
