# SPDX-License-Identifier: Apache-2.0
"""Packs the forebay that is installed here into a wheel, for projects that cannot get this version from an index."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

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
