# SPDX-License-Identifier: Apache-2.0
"""The example of a file format, installed as a package would be."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay import FileSource, HostOptions
from forebay.errors import ConfigurationError
from forebay.sources.files import catalog

EXAMPLE = Path(__file__).parents[2] / "examples" / "fixed_width.py"
SCHEMA = pa.schema([("order", pa.int64()), ("shop", pa.string()), ("amount", pa.float64())])
WIDTHS = {"width.order": 6, "width.shop": 10, "width.amount": 8}


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of orders; the package of its format is installed."""
    package = tmp_path / "package"
    info = package / "fixed-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fixed\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{catalog.GROUP}]\nfixed = fixed_width:FixedWidthFormat\n")
    shutil.copy(EXAMPLE, package)
    lines = (
        f"{number:<6}{f'käse {number % 3}'.encode().decode('latin-1'):<10}{number * 1.5:>8.2f}\n"
        for number in range(1000)
    )
    (tmp_path / "orders.fixed").write_bytes("".join(lines).encode("latin-1"))
    monkeypatch.syspath_prepend(str(package))
    yield tmp_path / "orders.fixed"
    sys.modules.pop("fixed_width", None)
    monkeypatch.undo()
    catalog._installed.refresh()


def source(path: Path, **options: Any) -> FileSource:
    return FileSource(path=str(path), file_format="fixed", format_options=WIDTHS, **options)


@pytest.mark.parametrize("most", ["128m", "1000b", "24b"])
def test_records_of_all_slices_are_read_once(orders: Path, most: str) -> None:
    found = forebay.run(source(orders, max_partition_bytes=most).with_schema(SCHEMA), parallelism=3).to_table()
    rows = sorted(found.to_pylist(), key=lambda row: row["order"])
    assert rows == [{"order": number, "shop": f"käse {number % 3}", "amount": number * 1.5} for number in range(1000)]


def test_columns_are_texts_without_a_schema_and_may_be_selected(orders: Path) -> None:
    found = forebay.run(source(orders), options=HostOptions(columns=["amount"])).to_table()
    assert found.column("amount").to_pylist()[:2] == ["0.00", "1.50"]


def test_what_is_wrong_is_named(orders: Path) -> None:
    with pytest.raises(ConfigurationError, match="width above 0"):
        FileSource(path=str(orders), file_format="fixed")
    orders.write_bytes(orders.read_bytes()[:-1])
    with pytest.raises(forebay.DataError, match="no whole records of 25"):
        forebay.run(source(orders)).to_table()
