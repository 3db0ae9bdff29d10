# SPDX-License-Identifier: Apache-2.0
"""The file formats by name, each with its options; what Spark has and we do not honour is refused by name."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib import import_module
from typing import NamedTuple

from forebay.errors import ConfigurationError
from forebay.formats.base import FileFormat
from forebay.formats.compression import CODECS
from forebay.options import OptionSpec, class_options, parse_options
from forebay.stores.file_status import last_name

_SUFFIXES = {
    "csv": "csv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "parquet": "parquet",
    "txt": "text",
    "text": "text",
    "log": "text",
}


class _Entry(NamedTuple):
    """Where a format is written: imported when it is used, for each brings its own part of Arrow along.

    The module of the options may also say `ALIASES` (Spark's second name → first name), `OPTION_NAMES` (name → field,
    where Spark's name is not the usual one) and `REFUSED` and `IGNORED` (Spark's option → why it is not honoured).
    """

    module: str
    format: str
    options_module: str
    options: str


_FORMATS = {
    "csv": _Entry("forebay.formats.csv.format", "CsvFormat", "forebay.formats.csv.options", "CsvOptions"),
    "json": _Entry("forebay.formats.json.format", "JsonFormat", "forebay.formats.json.options", "JsonOptions"),
    "parquet": _Entry(
        "forebay.formats.parquet.format", "ParquetFormat", "forebay.formats.parquet.format", "ParquetOptions"
    ),
    "text": _Entry("forebay.formats.text", "TextFormat", "forebay.formats.text", "TextOptions"),
}

NAMES = tuple(_FORMATS)

FIXED = ("text",)
"""Formats whose schema is known without a file."""

COUNT_ROWS = frozenset({"parquet"})
"""Formats whose positions are rows; those of the others are bytes."""

ELSEWHERE = {
    name: f": this release does not read it; Spark's own reader does: spark.read.format({name!r})"
    for name in ("avro", "binaryfile", "orc", "xml")
}
"""What Spark reads and we do not, in lower case → the end of the sentence that says so."""

_LISTING = "what a listing found is kept for as long as it is fresh, all of it; discoveryInterval says how long that is"

_ALIKE = 0.7
"""How alike an unknown option and the one suggested must be: `maxStringLen` does not mean `maxRowsPerTrigger`."""

REFUSED = {
    "archivePathFilter": "files inside of archives are not read",
    "discardCachedInputRatio": _LISTING,
    "ignoredPathSegmentRegex": "hidden names are those that begin with a dot or an underscore, and no others",
    "ignoreInvalidPartitionPaths": "directories that contradict each other are an error; name those wanted in path",
    "maxCachedFiles": _LISTING,
}
"""Options of Spark's file sources that are refused for every format → why."""


def format_of_path(path: str) -> str | None:
    """Return the format that a file's name tells, looking through a suffix of compression; None if it tells none."""
    suffixes = _suffixes(path)
    if suffixes and suffixes[-1].lower() in CODECS:
        suffixes.pop()
    return _SUFFIXES.get(suffixes[-1].lower()) if suffixes else None


def suffix_of_path(path: str) -> str:
    """Return the suffix of a file's name as an error shows it, with one of compression before it; maybe empty."""
    suffixes = _suffixes(path)
    return "".join(f".{part}" for part in suffixes[-2 if suffixes and suffixes[-1].lower() in CODECS else -1 :])


def _suffixes(path: str) -> list[str]:
    return last_name(path.rstrip("/")).split(".")[1:]


def format_options(name: str) -> tuple[OptionSpec, ...]:
    """Return the options of a format, under all names that Spark has for them."""
    entry = _FORMATS[name]
    module = import_module(entry.options_module)
    names = {field: shown for shown, field in getattr(module, "OPTION_NAMES", {}).items()}
    aliases: dict[str, list[str]] = {}
    for alias, meant in getattr(module, "ALIASES", {}).items():
        aliases.setdefault(meant.lower(), []).append(alias)
    return tuple(
        replace(
            spec,
            name=names.get(spec.python_name, spec.name),
            aliases=(*spec.aliases, *aliases.get(spec.name.lower(), ())),
        )
        for spec in class_options(getattr(module, entry.options))
    )


def refused_options(name: str) -> Mapping[str, str]:
    """Return the options of Spark's reader of a format that are refused, and why."""
    module = import_module(_FORMATS[name].options_module)
    return {**REFUSED, **getattr(module, "IGNORED", {}), **getattr(module, "REFUSED", {})}


def make_format(
    name: str,
    given: Mapping[str, object],
    *,
    source: str,
    others: Collection[OptionSpec],
    defaults: Mapping[str, object],
) -> FileFormat:
    """Make a format from the options the user wrote.

    Args:
        name: One of `NAMES`.
        given: The options that are not the source's or the host's own.
        source: The format name of the source, for errors.
        others: Options of the source and the host, which may have been meant.
        defaults: Values of options that are not given, by Python name.

    Raises:
        ConfigurationError: An option is unknown, one of Spark's that is not honoured, or has a wrong value.
    """
    entry = _FORMATS[name]
    specs = format_options(name)
    known = {spelling for spec in specs for spelling in spec.spellings}
    refused = {spelling.lower(): reason for spelling, reason in refused_options(name).items()}
    for option in given:
        if option.lower() in known:
            continue
        if option.lower() in refused:
            raise ConfigurationError(
                f"the option {option!r} of Spark is not honoured for {name} files: {refused[option.lower()]}",
                source=source,
                option=option,
                advice="leave it out, or read these files with Spark's own reader",
            )
        raise _unknown(option, name, source, specs, others)
    values = parse_options(specs, given, source=source, defaults=defaults)
    options = getattr(import_module(entry.options_module), entry.options)
    try:
        made = getattr(import_module(entry.module), entry.format)(options(**values))
    except ConfigurationError as error:
        raise error.located(source=source) from error.__cause__
    if not isinstance(made, FileFormat):
        raise TypeError(f"{entry.format} is no FileFormat")
    return made


def refuse_unknown(given: Mapping[str, object], *, source: str, others: Collection[OptionSpec]) -> None:
    """Refuse options that no format has; called while the format is not known yet.

    Raises:
        ConfigurationError: Naming the option.
    """
    if not given:
        return
    specs = [spec for name in NAMES for spec in format_options(name)]
    known = {spelling for spec in specs for spelling in spec.spellings}
    known |= {spelling.lower() for name in NAMES for spelling in refused_options(name)}
    for option in given:
        if option.lower() not in known:
            raise _unknown(option, None, source, specs, others)


def _unknown(
    option: str, name: str | None, source: str, specs: Collection[OptionSpec], others: Collection[OptionSpec]
) -> ConfigurationError:
    candidates = [*specs, *others]
    meant = {spelling: spec.name for spec in candidates if spec.prefix is None for spelling in spec.spellings}
    meant |= {alias.lower(): alias for spec in candidates for alias in spec.aliases}
    near = difflib.get_close_matches(option.lower(), meant, 1, _ALIKE)
    elsewhere = [one for one in NAMES if one != name and option.lower() in _spellings(one)]
    hint = f"; did you mean {meant[near[0]]!r}?" if near else ""
    if elsewhere:
        hint = f"; it is an option of {' and '.join(elsewhere)} files"
    names = ", ".join(dict.fromkeys(spec.name for spec in specs))
    return ConfigurationError(
        f"there is no option {option!r} for {name + ' files' if name else 'any file format'}{hint}",
        source=source,
        option=option,
        advice=f"choose from {names}; or see docs/files.md for the options of all formats",
    )


def _spellings(name: str) -> set[str]:
    return {spelling for spec in format_options(name) for spelling in spec.spellings}
