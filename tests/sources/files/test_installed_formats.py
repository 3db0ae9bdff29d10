# SPDX-License-Identifier: Apache-2.0
"""A package adds a file format by an entry point."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import forebay
from forebay.errors import ConfigurationError
from forebay.sources.files import FileSource, catalog

MODULE = '''
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.base import FileFormat
from forebay.options import option


@dataclass(frozen=True)
class WordOptions:
    separator: str = option(default=" ", aliases="sep", doc="what separates words")
    upper_case: bool = False

    def __post_init__(self):
        if not self.separator:
            raise ConfigurationError("the separator is empty", option="separator")


class WordFormat(FileFormat):
    """One word per row; positions are row indexes."""

    name = "words"
    options_class = WordOptions
    refused = {"locale": "words have none"}
    counts_rows = True
    fixed_schema = True

    def infer_schema(self, files):
        return pa.schema([("word", pa.string())])

    def sliceable(self, file):
        return False

    def read(self, file, schema, *, columns=None, position=0, end=None):
        with file.open() as stream:
            text = stream.read().decode().strip()
        words = (text.upper() if self.options.upper_case else text).split(self.options.separator)
        yield pa.record_batch([words[position:end]], names=columns), len(words)


class NoFormat:
    pass
'''


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of words. The package `wordy` with the format `Words` is installed after forebay was imported."""
    info = tmp_path / "wordy-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wordy\nVersion: 1.2\n")
    points = {"Words": "wordy:WordFormat", "nothing": "wordy:NoFormat", "gone": "wordy.gone:Format"}
    lines = [f"{name} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{catalog.GROUP}]", *lines]))
    (tmp_path / "wordy.py").write_text(textwrap.dedent(MODULE))
    (tmp_path / "f.words").write_text("a b,c\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "f.words"
    sys.modules.pop("wordy", None)
    monkeypatch.undo()
    catalog._installed.refresh()


def test_a_format_of_a_package_reads_with_its_own_options(words: Path) -> None:
    def read(options: dict[str, str]) -> list[str]:
        source = FileSource(path=str(words), file_format="WORDS", format_options=options)
        return forebay.run(source).to_table().column("word").to_pylist()

    assert read({}) == ["a", "b,c"]
    assert read({"sep": ",", "upperCase": "true"}) == ["A B", "C"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"uperCase": "true"}, "did you mean 'upperCase'"),
        ({"locale": "de"}, "words have none"),
        ({"upperCase": "perhaps"}, "'upperCase' takes"),
        ({"separator": ""}, "the separator is empty"),
    ],
)
def test_options_of_such_a_format_are_checked_by_name(words: Path, options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as raised:
        FileSource(path=str(words), file_format="words", format_options=options)
    assert raised.value.source == "forebay_files"
    assert raised.value.option in options


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("word", "unknown; did you mean 'words'"),
        ("gone", r"the file format 'gone' \(the package wordy 1.2\)"),
        ("nothing", "wordy.NoFormat is not a FileFormat"),
    ],
)
def test_what_is_no_format_is_refused_by_name(words: Path, name: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        FileSource(path=str(words), file_format=name)
