# SPDX-License-Identifier: Apache-2.0
"""A Jupyter kernel: sources defined in cells, and the progress of a stream as the output of a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

SESSION = """
import forebay, pyarrow as pa
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
FACTOR = 10

def scaled(n):
    return FACTOR * n
"""
SOURCE = """
class Numbers(forebay.SimpleSource):
    count: int = 3

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def read(self, split):
        for n in range(split.position or 0, self.count):
            yield {"n": scaled(n)}

forebay.register(spark, Numbers)
"""
READ = '[row.n for row in spark.read.format("numbers").option("count", 3).load().collect()]'
STREAM = """
frame = forebay.read_stream(spark, Numbers(count=50))
query = frame.writeStream.format("memory").queryName("counted").trigger(availableNow=True).start()
forebay.progress(query)
"""
FAILING = """
try:
    forebay.read(spark, Numbers(count="many"))
except forebay.ForebayError as error:
    print(error.option)
"""

Cell = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def cell() -> Iterator[Cell]:
    """Runs a cell in a kernel; gives the messages of its output."""
    pytest.importorskip("ipykernel")
    manager = pytest.importorskip("jupyter_client.manager")
    kernel, client = manager.start_new_kernel(kernel_name="python3")

    def run(code: str) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        reply = client.execute_interactive(code, timeout=200, output_hook=messages.append)
        assert reply["content"]["status"] == "ok", "\n".join(reply["content"].get("traceback", ()))
        return messages

    run(SESSION)
    yield run
    run("spark.stop()")
    client.stop_channels()
    kernel.shutdown_kernel(now=True)


def result(messages: list[dict[str, Any]]) -> str:
    (found,) = [one["content"]["data"]["text/plain"] for one in messages if one["msg_type"] == "execute_result"]
    return str(found)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")  # of the client of Jupyter
def test_a_class_of_a_cell_is_read_and_read_anew_after_the_cell_has_changed(cell):
    assert "numbers" in result(cell(SOURCE))
    assert result(cell(READ)) == "[0, 10, 20]"
    cell("FACTOR = 100")
    cell(SOURCE)
    assert result(cell(READ)) == "[0, 100, 200]"
    assert result(cell("[row.n for row in forebay.read(spark, Numbers(count=2)).collect()]")) == "[0, 100]"


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
def test_progress_is_one_output_that_is_replaced(cell):
    cell(SOURCE)
    shown = [one for one in cell(STREAM) if "text/html" in one["content"].get("data", {})]
    assert shown[0]["msg_type"] == "display_data"
    assert {one["msg_type"] for one in shown[1:]} == {"update_display_data"}
    assert len({one["content"]["transient"]["display_id"] for one in shown}) == 1
    assert "ended" in shown[-1]["content"]["data"]["text/html"]
    assert result(cell('spark.table("counted").count()')) == "50"
