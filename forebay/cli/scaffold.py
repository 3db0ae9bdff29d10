# SPDX-License-Identifier: Apache-2.0
"""`forebay new`: writes the project of a new connector, whose tests pass as written."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import keyword
import re
import zipfile
from collections.abc import Iterator
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
        ConfigurationError: The name is invalid, Python can already import it, or a file exists already. In these
            cases, nothing is written.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or name.startswith(("forebay", "test")):
        raise ConfigurationError(
            f"{name!r} cannot be the name of a connector",
            advice="use lower-case letters, digits and underscores, such as shop_orders; begin with a letter, but "
            "neither with forebay nor with test",
        )
    if find_spec(name) is not None:
        raise ConfigurationError(
            f"{name!r} is the name of a module that Python can already import, and the connector would hide it",
            advice="choose another name, such as " + _free_name(name),
        )
    names = {
        "package": name,
        "cls": "".join(part.capitalize() for part in name.split("_")) + "Source",
        "project": name.replace("_", "-"),
        "version": __version__,
        "links": "" if comes_from_an_index() else f"{_FIND_LINKS} ",
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
            f"{existing[0]} exists, so nothing is written", advice="choose another --directory, or remove the file"
        )
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    if comes_from_an_index():
        return list(texts)
    wheel, content = own_wheel()
    (directory / _VENDOR).mkdir(exist_ok=True)
    (directory / _VENDOR / wheel).write_bytes(content)
    return [*texts, directory / _VENDOR / wheel]


def _free_name(name: str) -> str:
    """Return a name for a package that begins with `name` and that Python cannot import."""
    candidates = (f"{name}_source{number or ''}" for number in count())
    return next(candidate for candidate in candidates if find_spec(candidate) is None)
