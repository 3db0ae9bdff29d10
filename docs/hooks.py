# SPDX-License-Identifier: Apache-2.0
"""Hooks of the site: files outside docs/ that pages link to are part of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\(\.\./([^)#\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add each linked file, below `repository/`: the pages of directories are their READMEs."""
    from mkdocs.structure.files import File

    pages = [Path(file.abs_src_path or "") for file in files.documentation_pages()]
    targets = {_target(match[1]) for page in pages for match in LINK.finditer(page.read_text(encoding="utf-8"))}
    for target in sorted(targets):
        files.append(File.generated(config, f"repository/{target}", abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Let links to `../` lead to those files."""
    return LINK.sub(lambda match: f"](repository/{_target(match[1])}{match[2] or ''})", markdown)


def _target(link: str) -> str:
    path = ROOT / link
    return f"{link.rstrip('/')}/README.md" if path.is_dir() else link
