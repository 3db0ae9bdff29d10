# SPDX-License-Identifier: Apache-2.0
"""What a file source reads: its options, paths, format, and the listing of its files."""

from __future__ import annotations

import difflib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.base import FileFormat
from forebay.framework.host_options import HostOptions
from forebay.framework.source import Source
from forebay.options import ByteSize, Duration, OptionSpec, Secret, class_options, option
from forebay.sources.files import catalog
from forebay.sources.files.format_hint import format_of_files, format_of_paths, unknown_format
from forebay.sources.files.listing.file_index import FileIndex, ListOptions, list_files
from forebay.sources.files.store_arguments import store_arguments
from forebay.stores.file_status import FileStatus
from forebay.stores.paths import refuse_password
from forebay.stores.storage_options import StorageOptions
from forebay.stores.stored_file import StoredFile

if TYPE_CHECKING:
    FormatOptions = Mapping[str, str | bool | int | float]
else:
    # Kept as texts: what "1" or "TRUE" means, only the format knows.
    FormatOptions = dict[str, str]


class FileScan(Source):
    """The options of `FileSource`, and what follows from them: the paths, the format, the listing.

    Listing, inference, cleaning, the enumerators and the split reader depend on this class, not on the source.
    """

    path: str | None = option(default=None, doc="a file, a directory, a glob, or a URL of one")
    paths: list[str] = option(default_factory=list, doc="several of them")
    file_format: str | None = option(default=None, doc="csv, json, parquet or text; not set: as the suffixes say")
    path_glob_filter: str | None = option(default=None, doc="read only files whose name matches this glob")
    recursive_file_lookup: bool = option(default=False, doc="read nested directories too, without partition columns")
    modified_before: str | None = option(default=None, doc="read only files last changed before this time")
    modified_after: str | None = option(default=None, doc="read only files last changed after this time")
    base_path: str | None = option(default=None, doc="the root directory, where partition columns begin")
    partition_type_inference: bool = option(
        default=True, doc="infer the types of partition columns; else they are strings"
    )
    include_metadata: bool = option(default=False, doc="add the column _metadata with what Spark's own has")
    ignore_missing_files: bool = option(default=False, doc="leave out files that are gone by the time they are read")
    ignore_corrupt_files: bool = option(default=False, doc="keep what could be read of a damaged file, and go on")
    max_partition_bytes: ByteSize = option(default="128m", doc="most bytes of a file in one slice")
    time_zone: str = option(default="UTC", doc="zone of times without one; on Spark the session's by default")
    latest_first: bool = option(
        default=False, may_change=False, doc="a stream takes the newest files first; then `maxFileAge` does not hold"
    )
    max_file_age: Duration = option(
        default="7d", doc="a stream passes over files that are older by this than the newest one it has taken"
    )
    file_name_only: bool = option(
        default=False, doc="a stream takes files of the same name for the same file, whatever their directories"
    )
    on_changed_file: Literal["error", "ignore", "reread"] = option(
        default="error", doc="what a stream does with a file that changed after it was read"
    )
    clean_source: Literal["off", "delete", "archive"] = option(
        default="off", doc="what a stream does with files it has read to their end"
    )
    source_archive_dir: str | None = option(default=None, doc="where `cleanSource=archive` moves files")
    storage: dict[str, Secret] = option(
        default_factory=dict, prefix="storage.", doc="arguments of the store of a URL, for fsspec"
    )
    format_options: FormatOptions = option(default_factory=dict, prefix="", doc="the options of the file format")

    _schema: ClassVar[pa.Schema | None] = None
    _columns: ClassVar[tuple[str, ...] | None] = None
    _found: ClassVar[dict[str, str]] = {}

    def __post_init__(self) -> None:
        if isinstance(self.format_options, Mapping):
            texts = {name: _text(value) for name, value in self.format_options.items()}
            object.__setattr__(self, "format_options", texts)
        # What the listed files tell: one memory for all copies of this source, and pickled along.
        object.__setattr__(self, "_found", {})
        super().__post_init__()

    def check(self) -> None:
        """Refuse a source without a path, of an unknown format, or with options the format does not have.

        Looks at no store: where only the files can tell the format, its options are checked when they are listed.

        Raises:
            ConfigurationError: Naming the option.
        """
        if not self.all_paths():
            raise ConfigurationError(
                "no path is given", source=self.name, option="path", advice='give path="…", or load("…")'
            )
        for path in self.all_paths():
            refuse_password(path)
        if self.base_path is not None:
            refuse_password(self.base_path, option="basePath")
        if self.source_archive_dir is not None:
            refuse_password(self.source_archive_dir, option="sourceArchiveDir")
        if self.file_format is None and format_of_paths(self.all_paths(), self.name) is None:
            catalog.refuse_unknown(self.format_options, source=self.name, others=self._other_options())
        else:
            self.format()

    def all_paths(self) -> list[str]:
        """Return what `path` and `paths` say."""
        return [*([self.path] if self.path is not None else []), *self.paths]

    def format(self) -> FileFormat:
        """Return the file format, with its options.

        Raises:
            ConfigurationError: It is unknown, or an option is.
        """
        return catalog.make_format(
            self.format_name(),
            self.format_options,
            source=self.name,
            others=self._other_options(),
            defaults={"time_zone": self.time_zone},
        )

    def format_name(self) -> str:
        """Return which of the formats it is: the one given, or what the suffixes of the paths or of the files tell.

        Lists the files, once, if neither the user nor the paths say it.

        Raises:
            ConfigurationError: It is unknown, or the files do not agree on one.
            RetriableError: A store did not answer.
        """
        chosen = self.file_format or format_of_paths(self.all_paths(), self.name)
        if chosen is None:
            if not self._found:
                files = self.list().files
                if not self._found:
                    raise unknown_format(self.all_paths(), files, self.name)
            return self._found["format"]
        name = chosen.lower()
        if name in catalog.NAMES:
            return name
        near = difflib.get_close_matches(name, catalog.NAMES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else catalog.ELSEWHERE.get(name, "")
        raise ConfigurationError(
            f"the file format {chosen!r} is unknown{hint}",
            source=self.name,
            option="fileFormat",
            advice=f"give fileFormat as one of {', '.join(catalog.NAMES)}",
        )

    @abstractmethod
    def full_schema(self) -> pa.Schema:
        """Return the schema before columns are selected."""

    @abstractmethod
    def with_schema(self, schema: pa.Schema) -> Self:
        """Return this scan with a schema of the user's."""

    def list(self, *, repeated: bool = False, begun: bool = False) -> FileIndex:
        """Look at the stores and return the files there are.

        Args:
            repeated: A glob that matches nothing is no error, nor is what goes away meanwhile: files come and go.
            begun: An earlier listing found the paths: one that is not there now is away for a while, or, in an object
                store, empty.

        Raises:
            ConfigurationError: A path matches nothing, or an option is wrong.
            RetriableError: A store did not answer, or a path is away.
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
                storage=self.storage_options(),
            ),
        )
        if self.file_format is None and not self._found and (name := format_of_files(index.files)) is not None:
            self._found["format"] = name
        return index

    def learn_format(self, path: str) -> None:
        """Learn the format from a file that was planned, unless it is known: nothing need be listed for it then."""
        if (name := catalog.format_of_path(path)) is not None:
            self._found.setdefault("format", name)

    def stored(self, status: FileStatus) -> StoredFile:
        """Return a listed file as one that can be opened."""
        return StoredFile(status, self.storage_options())

    def storage_options(self) -> StorageOptions:
        """Return the arguments of the store, revealed where they are used."""
        return store_arguments(self.storage)

    def _other_options(self) -> Sequence[OptionSpec]:
        return [spec for owner in (type(self), HostOptions) for spec in class_options(owner)]


def _text(value: object) -> object:
    """Return an option's value as the text that a user of Spark would write; what cannot be one, as it is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else value
