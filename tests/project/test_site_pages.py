# SPDX-License-Identifier: Apache-2.0
"""The pages of the site that no other test reads: the API has every public name, and the first program runs."""

from __future__ import annotations

import re

import forebay
from forebay import changelog, index, keys, testkit


def test_each_public_name_is_on_the_page(root):
    page = (root / "docs" / "reference.md").read_text()
    shown = re.findall(r"^::: (\S+)$", page, re.MULTILINE)
    public = {f"forebay.{name}" for name in forebay.__all__} - {"forebay.__version__", "forebay.testkit"}
    doors = {"testkit": testkit, "changelog": changelog, "index": index, "keys": keys}
    others = {f"forebay.{door}.{name}" for door, module in doors.items() for name in module.__all__}
    assert sorted(shown) == sorted(public | others)


def test_the_first_source_runs(root, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (root / "docs" / "index.md").read_text(), re.DOTALL)
    (program,) = [block for block in blocks if "class Countdown" in block]
    exec(compile(program, "index.md", "exec"), {"__name__": "index"})
    printed = capsys.readouterr().out
    assert printed.startswith("{'n': [3, 2, 1]}\ncountdown: passed: ")


def test_each_page_is_in_the_navigation(root):
    """mkdocs checks it too, but is not run by every test run."""
    listed = set(re.findall(r": (\S+\.md)$", (root / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == {path.name for path in (root / "docs").glob("*.md")}
