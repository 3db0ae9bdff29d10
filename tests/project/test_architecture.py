# SPDX-License-Identifier: Apache-2.0
"""Each module that docs/architecture.md names is where the page says."""

from __future__ import annotations

import re

NAMED = re.compile(r"`(?:forebay/)?([\w/<>]+\.py)`")
FOLDER = re.compile(r"\| `([\w/]+/)`")


def missing(text, modules):
    """The modules of a text that are not below the folder of their row, or below the room that a path before names."""
    rooms = {module.partition("/")[0] for module in modules if "/" in module}
    for line in text.splitlines():
        folder = row[1] if (row := FOLDER.match(line)) else ""
        for named in NAMED.findall(line):
            first, _, rest = named.partition("/")
            if rest and first in rooms | {"tests"}:
                folder = f"{first}/"
            name = re.escape(named.removeprefix(folder)).replace("<name>", "[^/]+")
            place = re.compile(rf"{folder or '.*'}(.*/)?{name}")
            if folder != "tests/" and named not in modules and not any(map(place.fullmatch, modules)):
                yield named


def test_every_module_that_the_page_names_exists(root):
    forebay = root / "forebay"
    modules = {str(path.relative_to(forebay)) for path in forebay.rglob("*.py")}
    page = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert len(NAMED.findall(page)) > 200
    assert list(missing(page, modules)) == []
    gone = "| `spark/index/` | `target.py`, `cli/stream.py` → `retry.py` |"
    assert list(missing(gone, modules)) == ["target.py", "cli/stream.py"]
