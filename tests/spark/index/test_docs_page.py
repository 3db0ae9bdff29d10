# SPDX-License-Identifier: Apache-2.0
"""Every snippet of docs/indexing.md is run, in the order of the page; those of OpenSearch by `test_opensearch.py`."""

from __future__ import annotations

import re
import shlex
from decimal import Decimal
from pathlib import Path

from forebay.cli import main

PAGE = (Path(__file__).parents[3] / "docs" / "indexing.md").read_text(encoding="utf-8")
ORDERS = "order_id int, status string, total decimal(12,2), note string, is_deleted boolean"
CHANGES = "order_no long, ship_city string"


def test_the_snippets_of_the_page_run(spark, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # Spark's own directory is another one: what it reads has absolute paths
    rows = [
        (7, "open", Decimal("12.50"), "東京への配送が遅延しています", False),
        (8, "late", Decimal(3), "a late parcel", None),
    ]
    spark.createDataFrame(rows, ORDERS).write.parquet(str(tmp_path / "orders"))
    spark.createDataFrame(rows[:1], ORDERS).write.parquet(str(tmp_path / "day3"))
    spark.createDataFrame([(7, "Oslo")], CHANGES).write.parquet(str(tmp_path / "shipments"))
    page = PAGE
    (tmp_path / "gone.csv").write_text("order_id\n99\n")
    for text in ('parquet("orders")', '"checks/shipments"', " day3/ ", " gone.csv "):
        assert page.count(text) == 1
        page = page.replace(
            text, re.sub(r"[a-z0-9]+[./]?[a-z]*(?=[\") ]*$)", lambda match: str(tmp_path / match[0]), text)
        )
    names = {
        "spark": spark,
        "shipment_changes": spark.readStream.schema(CHANGES).parquet(str(tmp_path / "shipments")),
        "page_me": print,
        "frame": spark.createDataFrame([(9, "open", Decimal(1), "new", False)], ORDERS),
    }
    blocks = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "OpenSearch" not in each]
    assert len(blocks) == 6
    for block in blocks:
        exec(compile(block, "docs/indexing.md", "exec"), names)
        names["query"].processAllAvailable()
    names["query"].stop()
    orders = names["orders"]
    orders.refresh()
    edited = orders.get(7)
    assert (edited["city"], edited["status"], edited["note"]) == ("Oslo", "closed", "handed over")
    assert (orders.get(8)["status"], orders.get(9), orders.get(12), orders.count()) == ("closed", None, None, 2)
    assert orders.view().overlay.edits == ()
    assert names["funnel"].verify(orders).is_equal and orders.version.pipeline != "000001"
    commands = [each for each in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "opensearch" not in each]
    shown = capsys.readouterr().out
    assert "REPLACEMENT\n  the property 'note' has another filter" in shown
    assert "serves, at fact" in shown and shown.endswith("\n1\n")
    assert "'note': '東京への配送が遅延しています'" in shown and "True {'inserted': 1" in shown
    assert len(commands) == 2
    for line in "".join(commands).replace("index run objects", "index run --once objects").splitlines():
        assert main(shlex.split(line, comments=True)[1:]) == 0, line
    shown = " ".join(capsys.readouterr().out.split())
    assert "Order: fact 1 of the log datasource orders ─▶ commit orders" in shown and "index 000001" in shown
    assert "<h1>Order</h1>" in Path("objects.html").read_text(encoding="utf-8")
    assert "edits: 4 are in the index, 0 are pending" in shown
    assert "transaction 2026-11-28" in shown and "equal to the states of all datasources, 1 objects" in shown
    orders.close()
