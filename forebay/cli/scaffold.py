# SPDX-License-Identifier: Apache-2.0
"""`forebay new`: the project of a connector, ready to test."""

from __future__ import annotations

import json
import keyword
import re
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from forebay.cli.arguments import Json, say
from forebay.errors import ConfigurationError
from forebay.version import __version__

FILES = {
    "pyproject.toml": "pyproject.toml.tmpl",
    "README.md": "README.md.tmpl",
    ".gitignore": "gitignore.tmpl",
    ".github/workflows/test.yml": "workflow.yml.tmpl",
    "$package/__init__.py": "package.py.tmpl",
    "$package/source.py": "source.py.tmpl",
    "tests/test_source.py": "test_source.py.tmpl",
}
"""The files of a project, and their templates."""


def new(
    name: Annotated[str, typer.Argument(help="The format name, such as shop_orders.", show_default=False)],
    directory: Annotated[
        Path | None, typer.Option("--directory", "-d", help="Where to write; by default ./NAME.")
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Write the project of a connector: source, kit test, packaging, CI. Its tests pass as it is."""
    written = write_project(name, Path(name) if directory is None else directory)
    if as_json:
        say(json.dumps({"name": name, "files": [str(path) for path in written]}, indent=2))
        return
    say("\n".join(f"wrote {path}" for path in written))
    say(f"\nnext:\n  cd {written[0].parent}\n  pip install -e '.[test]'\n  pytest")


def write_project(name: str, directory: Path) -> list[Path]:
    """Write the files of a connector's project, and return their paths.

    Args:
        name: The format name; also that of the package.
        directory: The project's directory; created if it does not exist.

    Raises:
        ConfigurationError: The name is no valid package name, or a file exists. Nothing is written then.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or name.startswith(("forebay", "test")):
        raise ConfigurationError(
            f"{name!r} cannot be the name of a connector",
            advice="use lower-case letters, digits and underscores, a letter first, such as shop_orders",
        )
    if find_spec(name) is not None:
        raise ConfigurationError(
            f"{name!r} is the name of a package that Python finds already, which the connector would hide",
            advice="choose another name, such as shop_orders",
        )
    names = {
        "package": name,
        "cls": "".join(part.capitalize() for part in name.split("_")) + "Source",
        "project": name.replace("_", "-"),
        "version": __version__,
    }
    templates = resources.files("forebay.cli") / "template"
    texts = {
        directory / Template(path).substitute(names): Template((templates / template).read_text("utf-8")).substitute(
            names
        )
        for path, template in FILES.items()
    }
    if existing := [path for path in texts if path.exists()]:
        raise ConfigurationError(
            f"{existing[0]} exists, and is not overwritten", advice="choose another --directory, or remove the file"
        )
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return list(texts)
