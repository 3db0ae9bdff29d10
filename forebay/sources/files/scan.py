# SPDX-License-Identifier: Apache-2.0
"""The options of the file source, what they define (paths, format, listing, stores), and the errors of its files."""

from __future__ import annotations

import difflib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple, Self, get_args

import pyarrow as pa

from forebay.errors import ConfigurationError, DataError
from forebay.formats.base import IGNORE_CORRUPT_FILES, FileFormat
from forebay.formats.bound_filters import bind, matching
from forebay.formats.filters import Expression, parse_filter
from forebay.formats.values.dates import session_zone
from forebay.formats.values.time_columns import DatePattern
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.options import ByteSize, Duration, OptionSpec, Secret, class_options, option
from forebay.sources.files import catalog
from forebay.sources.files.catalog import format_of_files, format_of_path, format_of_paths, unknown_format
from forebay.sources.files.file_index import FileIndex, list_files
from forebay.sources.files.listing import ListOptions
from forebay.stores.file_status import FileStatus
from forebay.stores.paths import refuse_password
from forebay.stores.store import StorageOptions
from forebay.stores.stored_file import StoredFile

if TYPE_CHECKING:
    FormatOptions = Mapping[str, str | bool | int | float]
else:
    # Values stay texts: only the file format knows the type of "1" or "TRUE".
    FormatOptions = dict[str, str]

# -- Parses the option `fileEventTime`, which says where the event time of a file comes from.

Kind = Literal["footer", "partition", "path", "modified"]

OPTION = "fileEventTime"


class FileEventTime(NamedTuple):
    """A parsed value of the option `fileEventTime`: where the event time of a file comes from.

    Attributes:
        kind: `footer`, `partition`, `path` or `modified`.
        argument: The column for `footer` and `partition`, the date pattern for `path`; empty for `modified`.
    """

    kind: Kind
    argument: str = ""

    def pattern(self) -> DatePattern:
        """Return the compiled date pattern. Only for the kind `path`."""
        return DatePattern.inside(self.argument)


def parse_event_time(text: str, source: str) -> FileEventTime:
    """Parse a value of the option `fileEventTime`.

    Args:
        text: The value.
        source: The format name, for errors.

    Raises:
        ConfigurationError: The value or its date pattern is invalid.
    """
    name, _, argument = text.strip().partition(":")
    kind = next((known_kind for known_kind in get_args(Kind) if known_kind == name.strip().lower()), None)
    argument = argument.strip()
    if kind is None or bool(argument) == (kind == "modified"):
        raise ConfigurationError(
            f"the option fileEventTime has the invalid value {text!r}",
            source=source,
            option=OPTION,
            advice="set fileEventTime to footer:<column> (Parquet), partition:<column>, path:<pattern> such as "
            "path:yyyy/MM/dd/HH, or modified",
        )
    event_time = FileEventTime(kind, argument)
    if kind == "path":
        try:
            event_time.pattern()
        except ValueError as error:
            raise ConfigurationError(
                f"fileEventTime: {error}",
                source=source,
                option=OPTION,
                advice="use Spark's letters for dates and times, with other letters in single quotes: "
                "path:'day='yyyy-MM-dd",
            ) from None
    return event_time


# -- Checks the options `partitionFilter` and `rowFilter` of the file source, and applies the row filter.

PARTITION_FILTER: Final = "partitionFilter"
ROW_FILTER: Final = "rowFilter"


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The parsed `rowFilter` of a read.

    Args:
        expression: The filter, bound to its columns.
        names: The names of the columns to return. Columns that only the filter needs are read but not returned.
    """

    expression: Expression
    names: Sequence[str]

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of `batch` that match the filter, with the columns to return."""
        return matching(batch, self.expression).select(self.names)


def check_filters(partition_filter: str | None, row_filter: str | None, *, recursive: bool) -> None:
    """Refuse filters that cannot be parsed, and a partition filter together with `recursiveFileLookup`.

    Raises:
        ConfigurationError: A filter is invalid. The error names the option.
    """
    if row_filter is not None:
        parse_filter(row_filter, ROW_FILTER)
    if partition_filter is None:
        return
    parse_filter(partition_filter, PARTITION_FILTER)
    if recursive:
        raise ConfigurationError(
            f"{PARTITION_FILTER} needs partition columns, but recursiveFileLookup=true reads files without partition "
            "columns",
            option=PARTITION_FILTER,
            advice=f"remove {PARTITION_FILTER} or recursiveFileLookup",
        )


# -- The options of the file source, and the paths, file format, listing and store settings that they define.


class FileScan(Source):
    """The base class of `FileSource`, with its options. Modules that `FileSource` imports use this class instead."""

    path: str | None = option(default=None, doc="a file, a directory or a glob, as a path or a URL")
    paths: list[str] = option(default_factory=list, doc="a list of paths, each like the option `path`")
    file_format: str | None = option(
        default=None, doc="csv, json, orc, parquet, text …; by default inferred from suffixes"
    )
    path_glob_filter: str | None = option(default=None, doc="read only files whose name matches this glob")
    recursive_file_lookup: bool = option(default=False, doc="read nested directories too, without partition columns")
    modified_before: str | None = option(default=None, doc="read only files last changed before this time")
    modified_after: str | None = option(default=None, doc="read only files last changed after this time")
    base_path: str | None = option(default=None, doc="the root directory, where partition columns begin")
    partition_type_inference: bool = option(
        default=True, doc="infer the types of partition columns; else they are strings"
    )
    include_metadata: bool = option(default=False, doc="add the column _metadata, as in Spark")
    partition_filter: str | None = option(
        default=None, doc="read only partitions for which this SQL condition on partition columns is true"
    )
    row_filter: str | None = option(
        default=None,
        doc="read only rows for which this SQL condition is true; row groups and stripes without such rows are skipped",
    )
    ignore_missing_files: bool = option(default=False, doc="skip files that no longer exist when they are read")
    ignore_corrupt_files: bool = option(
        default=False, doc="in a damaged file, keep the rows before the damage, and continue with the next file"
    )
    max_partition_bytes: ByteSize = option(default="128m", doc="maximum bytes of a slice of a file")
    time_zone: str = option(default="UTC", doc="zone of timestamps that have none; by default the session's on Spark")
    latest_first: bool = option(
        default=False, may_change=False, doc="a stream reads the newest files first, and `maxFileAge` does not apply"
    )
    file_event_time: str | None = option(
        default=None,
        doc="a stream reads files by event time, from `footer:<column>`, `partition:<column>`, `path:<pattern>` or "
        "`modified`",
    )
    max_file_age: Duration = option(
        default="7d", doc="a stream skips files that are older by more than this than the newest file it has read"
    )
    file_name_only: bool = option(
        default=False, doc="a stream treats files with the same name as one file, whatever their directory"
    )
    on_changed_file: Literal["error", "ignore", "reread"] = option(
        default="error", doc="what a stream does with a file that changed after it was read"
    )
    clean_source: Literal["off", "delete", "archive"] = option(
        default="off", doc="what a stream does with files it has read to their end"
    )
    source_archive_dir: str | None = option(default=None, doc="directory into which `cleanSource=archive` moves files")
    schema_evolution: Literal["none", "addNewColumns"] = option(
        default="none", doc="what a stream does with columns that only later files have"
    )
    list_after: str = option(default="", doc="on S3: list only keys that sort after this key")
    storage: dict[str, Secret] = option(
        default_factory=dict, prefix="storage.", doc="settings of the store of a URL: for S3, or arguments for fsspec"
    )
    format_options: FormatOptions = option(default_factory=dict, prefix="", doc="the options of the file format")

    takes_s3a_settings: ClassVar[bool] = True
    """Whether a host may put the Spark session's `fs.s3a.*` settings into `storage` if the user sets no `storage.*`."""

    _schema: ClassVar[pa.Schema | None] = None
    _schema_inferred: ClassVar[bool] = False
    _columns: ClassVar[tuple[str, ...] | None] = None
    _found: ClassVar[dict[str, str]] = {}
    _inferred_from: ClassVar[FileIndex | None] = None
    _listing: ClassVar[FileIndex | None] = None

    def __post_init__(self) -> None:
        if isinstance(self.format_options, Mapping):
            texts = {name: _text(value) for name, value in self.format_options.items()}
            object.__setattr__(self, "format_options", texts)
        # The file format inferred from listed files. All copies of this source share this dict; pickles contain it.
        object.__setattr__(self, "_found", {})
        super().__post_init__()

    def check(self) -> None:
        """Refuse a source without a path, an unknown file format, unknown options of it, and options that conflict.

        Accesses no store. If the format depends on the files' suffixes, its options are checked after the files are
        listed.

        Raises:
            ConfigurationError: An option is invalid. The error names it.
        """
        if not self.all_paths():
            raise ConfigurationError(
                "the option path is not set",
                source=self.name,
                option="path",
                advice='set path="…" in Python, or call load("…") on Spark',
            )
        for path in self.all_paths():
            refuse_password(path)
        refuse_password(self.base_path or "", option="basePath")
        refuse_password(self.source_archive_dir or "", option="sourceArchiveDir")
        if self.file_event_time is not None:
            parse_event_time(self.file_event_time, self.name)
            if self.latest_first:
                raise ConfigurationError(
                    "the options fileEventTime (oldest files first) and latestFirst (newest files first) conflict",
                    source=self.name,
                    option="fileEventTime",
                    advice="set only one of the two options",
                )
        check_filters(self.partition_filter, self.row_filter, recursive=self.recursive_file_lookup)
        if self.chosen_format() is None:
            catalog.refuse_unknown(self.format_options, source=self.name, others=self._other_options())
        else:
            self.format()

    def all_paths(self) -> list[str]:
        """Return the paths of both options, `path` and `paths`."""
        return [*([self.path] if self.path is not None else []), *self.paths]

    def format(self) -> FileFormat:
        """Create the file format with the user's options.

        Raises:
            ConfigurationError: The format is unknown, or does not have one of the options.
        """
        return catalog.make_format(
            self.format_name(),
            self.format_options,
            source=self.name,
            others=self._other_options(),
            defaults={"time_zone": self.time_zone},
        )

    def chosen_format(self) -> str | None:
        """Return the name of the format from the option `fileFormat` or the suffixes of the paths.

        None if the format can only be inferred from the listed files.
        """
        return self.file_format or format_of_paths(self.all_paths(), self.name)

    def format_name(self) -> str:
        """Return the name of the file format: from the option, or inferred from suffixes.

        The first call may list the files.

        Raises:
            ConfigurationError: The format is unknown, or the suffixes of the files differ.
            RetriableError: A store did not answer.
        """
        chosen = self.chosen_format()
        if chosen is None:
            if not self._found:
                files = self.list().files
                if not self._found:
                    raise unknown_format(self.all_paths(), files, self.name)
            return self._found["format"]
        name = chosen.lower()
        if catalog.has_format(name):
            return name
        known = catalog.names()
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else catalog.ELSEWHERE.get(name, "")
        raise ConfigurationError(
            f"the file format {chosen!r} is unknown{hint}",
            source=self.name,
            option="fileFormat",
            advice=f"set fileFormat to one of {', '.join(known)}",
        )

    @abstractmethod
    def full_schema(self) -> pa.Schema:
        """Return the schema of all columns, including those that are not selected."""

    @abstractmethod
    def with_schema(self, schema: pa.Schema) -> Self:
        """Return a copy of this source with the user's schema."""

    @property
    def adds_columns(self) -> bool:
        """Whether `schemaEvolution` lets a restarted stream infer more columns than before."""
        return self.schema_evolution == "addNewColumns"

    @property
    def schema_inferred(self) -> bool:
        """Whether the resolved schema was inferred from the files."""
        return self._schema_inferred

    def bound_row_filter(self, full: pa.Schema) -> Expression | None:
        """Return the parsed `rowFilter`, bound to the types of its columns in `full`; None if the option is not set.

        Raises:
            ConfigurationError: A column does not exist, or a literal does not fit the type of its column.
        """
        if self.row_filter is None:
            return None
        return bind(parse_filter(self.row_filter, ROW_FILTER), full, session_zone(self.time_zone), ROW_FILTER)

    def list(self, *, repeated: bool = False, begun: bool = False) -> FileIndex:
        """List the files. See `ListOptions` for `repeated` and `begun`.

        Raises:
            ConfigurationError: A path matches nothing, or an option is invalid.
            RetriableError: A store did not answer, or a file or directory disappeared while it was listed.
        """
        types = {} if self._schema is None else {field.name: field.type for field in self._schema}
        index = list_files(
            self.all_paths(),
            ListOptions(
                recursive_file_lookup=self.recursive_file_lookup,
                path_glob_filter=self.path_glob_filter,
                modified_before=self.modified_before,
                modified_after=self.modified_after,
                timezone=self.time_zone,
                base_path=self.base_path,
                type_inference=self.partition_type_inference,
                partition_types=types,
                ignore_missing_files=self.ignore_missing_files,
                repeated=repeated,
                begun=begun,
                list_after=self.list_after,
                storage=self.storage_options(),
                partition_filter=self.partition_filter,
            ),
        )
        if self.file_format is None and not self._found and (name := format_of_files(index.files)) is not None:
            self._found["format"] = name
        return index

    def keep_listing(self, index: FileIndex) -> None:
        """Keep the listing from which the schema is inferred, so that a bounded read does not list again."""
        object.__setattr__(self, "_inferred_from", index)

    def learn_format(self, path: str) -> None:
        """Infer the file format, if it is not known yet, from the path of a planned file. This saves a listing."""
        if (name := catalog.format_of_path(path)) is not None:
            self._found.setdefault("format", name)

    def stored(self, status: FileStatus) -> StoredFile:
        """Return a listed file with the settings of its store, so that it can be opened."""
        return StoredFile(status, self.storage_options())

    def storage_options(self) -> StorageOptions:
        """Return the user's `storage.*` settings. References to secrets are resolved later, when they are used."""
        return StorageOptions.of_secrets(self.storage)

    def _other_options(self) -> Sequence[OptionSpec]:
        return [spec for owner in (type(self), HostOptions) for spec in class_options(owner)]


def _text(value: object) -> object:
    """Return a bool or a number as the text that a user of Spark would write."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else value


# -- Decides which read errors are ignored, and adds the path of the file to errors that a format raises.


def is_ignored(source: FileScan, stored: StoredFile, error: DataError) -> bool:
    """Return whether the options allow a read to skip the rest of a file after this error.

    `ignoreMissingFiles` allows that for a missing file, `ignoreCorruptFiles` for a damaged one. An error that names
    another option (`mode`, `datetimeRebaseMode` …) or a position concerns one record and is never ignored.

    Raises:
        DataError: The file has changed since it was listed, so it is unknown which version was read.
        RetriableError: The store did not answer.
    """
    if error.option not in (None, IGNORE_CORRUPT_FILES) or error.position is not None:
        return False
    now = stored.now()
    if now is None:
        return source.ignore_missing_files
    if not stored.status.same_file(now):
        stored.verify_unchanged()  # apparent damage may be a half-written new version
    return source.ignore_corrupt_files


def is_readable(source: FileScan, file_format: FileFormat, stored: StoredFile) -> bool:
    """Return whether a file can be read to infer a schema; False if it cannot and the options allow skipping it.

    Raises:
        DataError: The file cannot be read, and the options do not allow skipping it.
    """
    try:
        file_format.infer_schema([stored])
    except DataError as error:
        if not is_ignored(source, stored, error):
            raise with_file(error, source, stored.path) from error.__cause__
        return False
    return True


def with_file(error: DataError, source: FileScan, path: str | None = None) -> DataError:
    """Add the source's name and the file's path to an error that a format raised; return the error.

    The default of `path` is the path that the format stored as the error's source.
    """
    if error.source != source.name:
        path, error.source = path or error.source, None
    by_suffix = format_of_path(path or "")
    if error.option in ("mode", IGNORE_CORRUPT_FILES) and by_suffix not in (None, source.format_name()):
        hint = f", or fileFormat is wrong: the suffix says {by_suffix}"
        error.advice = (error.advice or "").removesuffix(hint) + hint
    return error.with_context(source=source.name, split=path)
