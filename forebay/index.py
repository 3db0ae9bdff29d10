# SPDX-License-Identifier: Apache-2.0
"""The public API for indexes: objects of several datasources, kept up to date, and answers about them.

`SearchNode` and `OpenSearchObjects` need neither Spark nor pyarrow. Names that need Spark are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.lazy_names import lazy_names
from forebay.table.index.definition import Datasource, ObjectType, Property
from forebay.table.index.node import SearchNode
from forebay.table.index.object_set import ObjectSet, Page, Version
from forebay.table.index.opensearch_objects import OpenSearchObjects

if TYPE_CHECKING:
    from forebay.inspection.metrics import alert_metrics
    from forebay.spark.index.funnel import Funnel, IndexTarget, spark_key_hashes
    from forebay.table.index.daemon import IndexDaemon
    from forebay.table.index.gc import Collected
    from forebay.table.index.monitor import Alert, Limits
    from forebay.table.index.opensearch import OpenSearchIndex
    from forebay.table.index.plan import Plan
    from forebay.table.index.replacement import Replacement
    from forebay.table.index.status import Status
    from forebay.table.index.transactions import Committed
    from forebay.table.index.verify import Verification
    from forebay.table.index.why import Explanation

_LAZY = {
    "Alert": "forebay.table.index.monitor",
    "Collected": "forebay.table.index.gc",
    "Committed": "forebay.table.index.transactions",
    "Explanation": "forebay.table.index.why",
    "Funnel": "forebay.spark.index.funnel",
    "IndexDaemon": "forebay.table.index.daemon",
    "IndexTarget": "forebay.spark.index.funnel",
    "Limits": "forebay.table.index.monitor",
    "OpenSearchIndex": "forebay.table.index.opensearch",
    "Plan": "forebay.table.index.plan",
    "Replacement": "forebay.table.index.replacement",
    "Status": "forebay.table.index.status",
    "Verification": "forebay.table.index.verify",
    "alert_metrics": "forebay.inspection.metrics",
    "spark_key_hashes": "forebay.spark.index.funnel",
}

__all__ = [
    "Alert",
    "Collected",
    "Committed",
    "Datasource",
    "Explanation",
    "Funnel",
    "IndexDaemon",
    "IndexTarget",
    "Limits",
    "ObjectSet",
    "ObjectType",
    "OpenSearchIndex",
    "OpenSearchObjects",
    "Page",
    "Plan",
    "Property",
    "Replacement",
    "SearchNode",
    "Status",
    "Verification",
    "Version",
    "alert_metrics",
    "spark_key_hashes",
]

__getattr__, __dir__ = lazy_names(
    "forebay.index", _LAZY, __all__, dict.fromkeys(("numpy", "pyspark"), "spark,changelog")
)
