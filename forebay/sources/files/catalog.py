# SPDX-License-Identifier: Apache-2.0
"""Finds file formats by name, and creates them with the user's options.

Refuses the options of Spark that forebay does not support; the error names the option.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from forebay.errors import ConfigurationError
from forebay.formats.base import FileFormat
from forebay.formats.compression.codecs import CODECS
from forebay.options import OptionSpec, class_options, parse_options
from forebay.registry import Registration, Registry
from forebay.stores.file_status import FileStatus
from forebay.stores.paths import last_name

_SUFFIXES = {
    "avro": "avro",
    "csv": "csv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "orc": "orc",
    "parquet": "parquet",
    "txt": "text",
    "text": "text",
    "log": "text",
}

BUILT_INS = {
    "avro": "forebay.formats.avro.format:AvroFormat",
    "binaryfile": "forebay.formats.binary_file:BinaryFileFormat",
    "csv": "forebay.formats.csv.format:CsvFormat",
    "json": "forebay.formats.json.format:JsonFormat",
    "orc": "forebay.formats.orc.format:OrcFormat",
    "parquet": "forebay.formats.parquet.format:ParquetFormat",
    "text": "forebay.formats.text:TextFormat",
}
"""The built-in formats: name → module and class. Each is imported on first use, because it loads modules of Arrow."""

GROUP = "forebay.formats"
"""The entry-point group in which other packages register formats, such as `lines = "shop.lines:LinesFormat"`."""

_KIND = "file format"
# Two registries: a built-in format is found without a search for installed packages.
_built_in = Registry([Registration(name, path) for name, path in BUILT_INS.items()], group="", kind=_KIND)
_installed = Registry([], group=GROUP, kind=_KIND)

ELSEWHERE = {
    name: f": forebay does not read it; use Spark's own reader: spark.read.format({name!r})" for name in ("xml",)
}
"""File formats that Spark reads and forebay does not: name in lower case → end of the error text."""

_LISTING = "forebay always caches a whole listing; the option discoveryInterval sets for how long"

_ALIKE = 0.7
"""Minimum similarity of an unknown option to a suggestion: `maxStringLen` must not suggest `maxRowsPerTrigger`."""

REFUSED = {
    "archivePathFilter": "files inside archives are not read",
    "discardCachedInputRatio": _LISTING,
    "ignoredPathSegmentRegex": "forebay always skips hidden names, such as .tmp and _temporary",
    "ignoreInvalidPartitionPaths": "forebay refuses directories that contradict each other; set path to those to read",
    "maxCachedFiles": _LISTING,
}
"""Options of Spark's file sources that forebay refuses for every format: name → reason."""


def format_of_path(path: str) -> str | None:
    """Return the file format of a path's suffix; None if it is unknown. A suffix such as `.gz` is skipped."""
    suffixes = _suffixes(path)
    if suffixes and suffixes[-1].lower() in CODECS:
        suffixes.pop()
    return _SUFFIXES.get(suffixes[-1].lower()) if suffixes else None


def suffix_of_path(path: str) -> str:
    """Return a path's suffix for an error text, with the compression suffix (`.csv.gz`); empty without a suffix."""
    suffixes = _suffixes(path)
    return "".join(f".{part}" for part in suffixes[-2 if suffixes and suffixes[-1].lower() in CODECS else -1 :])


def _suffixes(path: str) -> list[str]:
    return last_name(path.rstrip("/")).split(".")[1:]


def names() -> tuple[str, ...]:
    """Return the names of all formats in lower case: first built-in formats, then formats of installed packages."""
    return tuple(dict.fromkeys((*BUILT_INS, *(entry.name.lower() for entry in _installed.entries()))))


def has_format(name: str) -> bool:
    """Return whether a file format has this lower-case name. Formats of newly installed packages are found, too."""
    if name in BUILT_INS or name in names():
        return True
    _installed.refresh()
    return name in names()


def format_class(name: str) -> type[FileFormat]:
    """Import and return the class of a file format.

    Raises:
        ConfigurationError: No format has this name, or its package cannot be loaded.
    """
    cls = (_built_in if name in BUILT_INS else _installed).lookup(name)
    if not issubclass(cls, FileFormat):
        raise ConfigurationError(
            f"the file format {name!r} cannot be used: {cls.__module__}.{cls.__qualname__} is not a FileFormat",
            option="fileFormat",
            advice=f"let the entry point {name!r} name a subclass of forebay.formats.base.FileFormat",
        )
    return cls


def format_options(name: str) -> tuple[OptionSpec, ...]:
    """Return the options of the file format with this name."""
    return class_options(format_class(name).options_class)


def refused_options(name: str) -> Mapping[str, str]:
    """Return the options of Spark's own reader of a file format that forebay refuses, each with the reason."""
    return {**REFUSED, **format_class(name).refused}


def make_format(
    name: str,
    options: Mapping[str, object],
    *,
    source: str,
    others: Collection[OptionSpec],
    defaults: Mapping[str, object],
) -> FileFormat:
    """Create the file format `name` with the user's options.

    Args:
        name: One of `names()`.
        options: The user's options, except those of the source and the host.
        source: The format name of the source, for errors.
        others: The options of the source and the host, which an error may suggest for a misspelt name.
        defaults: Values for options that the user does not give, by Python name.

    Raises:
        ConfigurationError: An option is unknown, is an unsupported option of Spark, or has an invalid value.
    """
    cls = format_class(name)
    specs = format_options(name)
    refused = {spelling.lower(): reason for spelling, reason in refused_options(name).items()}
    for option in options:
        if _takes(name, option):
            continue
        if option.lower() in refused:
            raise ConfigurationError(
                f"the option {option!r} of Spark is not supported for {name} files: {refused[option.lower()]}",
                source=source,
                option=option,
                advice=f"remove {option}, or read these files with Spark's own reader",
            )
        raise _unknown(option, name, source, specs, others)
    values = parse_options(specs, options, source=source, defaults=defaults)
    try:
        return cls(cls.options_class(**values))
    except ConfigurationError as error:
        raise error.with_context(source=source) from error.__cause__


def refuse_unknown(options: Mapping[str, object], *, source: str, others: Collection[OptionSpec]) -> None:
    """Refuse options that no built-in format has. Called if the format is known only after the files are listed.

    Args:
        options: The user's options, except those of the source and the host.
        source: The format name of the source, for errors.
        others: The options of the source and the host, which the error may suggest for a misspelt name.

    Raises:
        ConfigurationError: An option is unknown. The error names it.
    """
    for option in options:
        if not any(_takes(name, option) or option.lower() in _refused_spellings(name) for name in BUILT_INS):
            specs = [spec for name in BUILT_INS for spec in format_options(name)]
            raise _unknown(option, None, source, specs, others)


def _unknown(
    option: str, name: str | None, source: str, specs: Collection[OptionSpec], others: Collection[OptionSpec]
) -> ConfigurationError:
    candidates = [*specs, *others]
    meant = {spelling: spec.name for spec in candidates if spec.prefix is None for spelling in spec.spellings}
    meant |= {alias.lower(): alias for spec in candidates for alias in spec.aliases}
    near = difflib.get_close_matches(option.lower(), meant, 1, _ALIKE)
    elsewhere = [other for other in BUILT_INS if other != name and _takes(other, option)]
    hint = f"; did you mean {meant[near[0]]!r}?" if near else ""
    if elsewhere:
        hint = f"; it is an option of {' and '.join(elsewhere)} files"
    names = ", ".join(dict.fromkeys(spec.name for spec in specs))
    return ConfigurationError(
        f"there is no option {option!r} for {name + ' files' if name else 'any file format'}{hint}",
        source=source,
        option=option,
        advice=f"use one of {names}; docs/files.md lists the options of all formats",
    )


def _takes(name: str, option: str) -> bool:
    """Return whether a format accepts this option, by its name (in any case) or by a prefix such as `json.`."""
    spelling = option.lower()
    return any(
        spelling in spec.spellings or (spec.prefix and spelling.startswith(spec.prefix.lower()))
        for spec in format_options(name)
    )


def _refused_spellings(name: str) -> set[str]:
    return {spelling.lower() for spelling in refused_options(name)}


# -- Infers the file format from the suffixes of paths and files.


def format_of_paths(paths: Sequence[str], source: str) -> str | None:
    """Return the file format that the suffixes of the user's paths name; None if a path has no known suffix.

    Raises:
        ConfigurationError: The suffixes name several formats.
    """
    formats = {format_of_path(path) for path in paths}
    if len(formats) == 1 or None in formats:
        return formats.pop() if len(formats) == 1 else None
    raise _no_format(f"the suffixes of the paths name several formats: {_counted(paths)}", source)


def format_of_files(files: Sequence[FileStatus]) -> str | None:
    """Return the format that the suffixes of listed files name; None if the suffixes differ."""
    formats = {format_of_path(file.path) for file in files if file.size}
    formats = formats or {format_of_path(file.path) for file in files}
    return formats.pop() if len(formats) == 1 else None


def unknown_format(paths: Sequence[str], files: Sequence[FileStatus], source: str) -> ConfigurationError:
    """Return the error for files whose suffixes name no format, or several."""
    below = f"below {', '.join(paths)}"
    if not files:
        return _no_format(f"there are no files {below} to infer the format from", source)
    suffixes = _counted([file.path for file in _with_content(files)])
    return _no_format(f"the suffixes of the files {below} do not identify one format: {suffixes}", source)


def _no_format(why: str, source: str) -> ConfigurationError:
    return ConfigurationError(
        f"the option fileFormat is not set, and {why}",
        source=source,
        option="fileFormat",
        advice=f"set fileFormat to one of {', '.join(names())}",
    )


def _counted(paths: Sequence[str]) -> str:
    """Return a text with the most frequent suffixes of the paths and their counts."""
    counts = Counter(suffix_of_path(path) or "no suffix" for path in paths)
    shown = [f"{count} × {suffix}" for suffix, count in counts.most_common(8)]
    return ", ".join([*shown, "…"] if len(counts) > len(shown) else shown)


def _with_content(files: Sequence[FileStatus]) -> Sequence[FileStatus]:
    """Return the files that are not empty; all of `files` if every file is empty."""
    return [file for file in files if file.size] or files
