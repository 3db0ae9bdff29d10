# SPDX-License-Identifier: Apache-2.0
"""In place of pandas in the processes that tests start: pyarrow imports it for nothing, where it is installed."""

from __future__ import annotations

raise ModuleNotFoundError("tests/without_pandas stands before pandas", name="pandas")
