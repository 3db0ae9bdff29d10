# SPDX-License-Identifier: Apache-2.0
"""The driver program of docs/killing.md, killed: no row is lost, and none comes twice."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from order_service import OrderService  # see conftest.py

from forebay.testkit.kills import Kill, KillList, MicroBatchFiles, run_until_done

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "killing.md").read_text(encoding="utf-8"), re.DOTALL)
MODULE = """
from forebay.testkit.kills import Killable
from rest_orders import Orders

class KillableOrders(Killable, Orders):
    name = "killable_orders"
"""


def snippet(words: str) -> str:
    (code,) = [code for code in SNIPPETS if words in code]
    return code


def test_the_driver_of_the_document_survives_kills(tmp_path, monkeypatch):
    (tmp_path / "driver.py").write_text(snippet("# driver.py"))
    (tmp_path / "my_orders.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT / 'examples'}")
    kills = KillList(tmp_path / "kills")
    with OrderService(orders=300) as service:
        scope = {"Kill": Kill, "kills": kills, "run_until_done": run_until_done, "sys": sys}
        exec(compile(snippet("run_until_done("), "guide", "exec"), {**scope, "tmp_path": tmp_path, "url": service.url})
    rows = [json.loads(row)[0] for row in MicroBatchFiles(tmp_path / "rows").rows()]
    assert sorted(rows) == list(range(300))
    assert kills.armed() == []
