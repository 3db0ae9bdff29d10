# SPDX-License-Identifier: Apache-2.0
"""docs/files.md names every option, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forebay.options import class_options
from forebay.sources.files import FileSource, catalog

TITLES = {
    "avro": "Avro",
    "binaryfile": "Binary files",
    "csv": "CSV",
    "json": "JSON",
    "orc": "ORC",
    "parquet": "Parquet",
    "text": "Text",
}


def section(root: Path, title: str) -> str:
    text = (root / "docs" / "files.md").read_text()
    found = re.search(rf"^### {title}\n(.*?)^##", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def in_table(text: str) -> list[str]:
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def refused(text: str) -> set[str]:
    paragraphs = text[text.index("\nRefused") + 1 :]
    return set(re.findall(r"`([\w.]+)`", re.split(r"\n\nThe options of every source", paragraphs)[0]))


@pytest.mark.parametrize("name", catalog.BUILT_INS)
def test_every_option_of_a_format_is_in_its_table(root: Path, name: str) -> None:
    text = section(root, TITLES[name])
    options = [spelling for spec in catalog.format_options(name) for spelling in (spec.name, *spec.aliases)]
    assert sorted(in_table(text)) == sorted(options)
    assert refused(text) | refused(section(root, "All formats")) == set(catalog.refused_options(name))


def test_every_option_of_the_source_is_in_its_table(root: Path) -> None:
    shown = [spec.shown_name for spec in class_options(FileSource) if spec.prefix != ""]
    assert in_table(section(root, "All formats")) == shown


def test_no_format_takes_what_another_part_takes() -> None:
    own = {spelling for spec in class_options(FileSource) for spelling in spec.spellings}
    for name in catalog.BUILT_INS:
        clashes = own & {spelling for spec in catalog.format_options(name) for spelling in spec.spellings}
        assert clashes <= {"timezone", "time_zone"}
