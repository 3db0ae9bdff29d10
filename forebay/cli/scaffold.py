# SPDX-License-Identifier: Apache-2.0
"""`forebay new`: writes the project of a new connector, whose tests pass as written."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import keyword
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import resources
from importlib.metadata import distribution
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from forebay.cli.arguments import Json, say
from forebay.errors import ConfigurationError
from forebay.version import __version__

# -- Packs the forebay that is installed here into a wheel, for projects that cannot get this version from an index.


_LEFT_OUT = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
"""Files of the metadata that describe this installation, not the package."""


def comes_from_an_index() -> bool:
    """Return whether the installed forebay is a release of an index: PEP 610 records every other origin."""
    return distribution("forebay").read_text("direct_url.json") is None


def own_wheel() -> tuple[str, bytes]:
    """Return the file name and the content of a wheel of the installed package."""
    metadata = distribution("forebay")
    info = f"forebay-{metadata.version}.dist-info"
    content, record = io.BytesIO(), io.StringIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in sorted([*_package(), *_metadata(info)]):
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.write(f"{name},sha256={digest},{len(data)}\n")
            wheel.writestr(zipfile.ZipInfo(name), data)
        record.write(f"{info}/RECORD,,\n")
        wheel.writestr(zipfile.ZipInfo(f"{info}/RECORD"), record.getvalue())
    return f"forebay-{metadata.version}-py3-none-any.whl", content.getvalue()


def _package() -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file of the package, and of the modules by which Spark finds formats."""
    place = Path(__file__).parents[1]
    for path in [*place.rglob("*"), *place.parent.glob("pyspark_forebay_*.py")]:
        if path.is_file() and path.suffix != ".pyc":
            yield path.relative_to(place.parent).as_posix(), path.read_bytes()


def _metadata(info: str) -> Iterator[tuple[str, bytes]]:
    for file in distribution("forebay").files or ():
        if file.parts[0].endswith(".dist-info") and file.name not in _LEFT_OUT:
            yield "/".join((info, *file.parts[1:])), Path(str(file.locate())).read_bytes()


FILES = {
    "pyproject.toml": "pyproject.toml.tmpl",
    "README.md": "README.md.tmpl",
    ".gitignore": "gitignore.tmpl",
    ".github/workflows/test.yml": "workflow.yml.tmpl",
    "$package/__init__.py": "package.py.tmpl",
    "$package/source.py": "source.py.tmpl",
    "tests/test_source.py": "test_source.py.tmpl",
}
"""The template of each file of a project."""


_VENDOR = "vendor"
_FIND_LINKS = f"--find-links {_VENDOR}"
"""How pip finds the wheel of forebay in a project, if no index has this version."""

_NAME = re.compile(r"[a-z](?:[a-z0-9_]*[a-z0-9])?")
"""Format names that are also names of a package and, with hyphens, of a project (PEP 508)."""

_LONGEST_NAME = 40
"""Maximum length of a name: with a longer one, lines of the templates are not formatted as ruff wants them."""

_DIRECTORIES = {_VENDOR, "dist"}
"""Names of directories of a project that hold no source: wheels that it needs, and wheels that it builds."""


def new(
    name: Annotated[str, typer.Argument(help="The format name, such as shop_orders.", show_default=False)],
    directory: Annotated[
        Path | None, typer.Option("--directory", "-d", help="The directory to write to; by default ./NAME.")
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Write the project of a connector: source, conformance test, packaging, CI. Its tests pass as written."""
    written = write_project(name, Path(name) if directory is None else directory)
    if as_json:
        say(json.dumps({"name": name, "files": [str(path) for path in written]}, indent=2))
        return
    say("\n".join(f"wrote {path}" for path in written))
    links = "" if comes_from_an_index() else f"{_FIND_LINKS} "
    say(f"\nnext:\n  cd {written[0].parent}\n  pip install {links}-e '.[test]'\n  pytest")


def write_project(name: str, directory: Path) -> list[Path]:
    """Write the files of a connector's project, and return their paths.

    If the installed forebay is no release of an index, such as that of a checkout, its wheel goes into the project too:
    there, `pip install` and the CI find no other one.

    Args:
        name: The format name, which is also the name of the package.
        directory: The project's directory; created if it does not exist.

    Raises:
        ConfigurationError: The name is invalid, Python can already import it, a file exists already, or the directory
            cannot be written. In these cases, no file stays.
    """
    _refuse_bad(name)
    contents = _contents(name, directory)
    taken = [path for path in contents if os.path.lexists(path)]  # a link that leads nowhere is one, too
    inner = {parent for path in contents for parent in path.parents if directory in parent.parents}
    if taken := [*taken, *(parent for parent in sorted(inner) if os.path.islink(parent))]:
        raise ConfigurationError(
            f"{taken[0]} exists, so nothing is written", advice="choose another --directory, or remove the file"
        )
    _write(contents)
    return list(contents)


def _refuse_bad(name: str) -> None:
    bad = keyword.iskeyword(name) or name in _DIRECTORIES or name.startswith(("forebay", "test"))
    if bad or len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot be the name of a connector",
            advice=f"use at most {_LONGEST_NAME} lower-case letters, digits and underscores, such as shop_orders; "
            "begin with a letter, but neither with forebay nor with test; end with a letter or a digit; and not "
            + " or ".join(sorted(_DIRECTORIES)),
        )
    if find_spec(name) is not None:
        raise ConfigurationError(
            f"{name!r} is the name of a module that Python can already import, and the connector would hide it",
            advice="choose another name, such as " + _free_name(name),
        )


def _contents(name: str, directory: Path) -> dict[Path, bytes]:
    """Return the content of each file of a project."""
    names = {
        "package": name,
        "cls": "".join(part.capitalize() for part in name.split("_")) + "Source",
        "project": name.replace("_", "-"),
        "version": __version__,
        "links": "" if comes_from_an_index() else f"{_FIND_LINKS} ",
    }
    templates = resources.files("forebay.cli") / "template"
    contents = {}
    for path, template in FILES.items():
        text = Template((templates / template).read_text("utf-8")).substitute(names)
        contents[directory / Template(path).substitute(names)] = text.encode()
    if not comes_from_an_index():
        wheel, content = own_wheel()
        contents[directory / _VENDOR / wheel] = content
    return contents


def _write(contents: Mapping[Path, bytes]) -> None:
    """Write new files, all or none.

    Raises:
        ConfigurationError: A file cannot be written, or exists by now. Files that were written are removed again.
    """
    made: list[Path] = []
    try:
        for path, content in contents.items():
            missing = [parent for parent in path.parents if not os.path.lexists(parent)]
            for parent in reversed(missing):
                parent.mkdir()
                made.append(parent)
            with open(path, "xb") as file:  # never an existing file, nor what a link leads to
                made.append(path)
                file.write(content)
    except OSError as error:
        for path in reversed(made):
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
        raise ConfigurationError(
            f"{error.filename or path} cannot be written: {error.strerror or error}",
            advice="choose another --directory, or correct what the message says",
        ) from error


def _free_name(name: str) -> str:
    """Return a name for a package that begins like `name` and that Python cannot import."""
    begin = name[: _LONGEST_NAME - len("_source") - 3].rstrip("_")
    candidates = (f"{begin}_source{number or ''}" for number in count())
    return next(candidate for candidate in candidates if find_spec(candidate) is None)
