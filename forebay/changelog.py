# SPDX-License-Identifier: Apache-2.0
"""The public API for changelogs (rows with a change kind): convert them, materialize them, apply them to targets.

Names that need Spark or NumPy are imported on first use, so `import forebay.changelog` needs only pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.lazy_names import lazy_names
from forebay.table.changelog.shape import ChangelogMode, RowKind, stamp_changes

if TYPE_CHECKING:
    from forebay.spark.changelog.converting import (
        from_append,
        from_changes,
        from_debezium,
        from_delta_cdf,
        from_hudi,
        from_iceberg_changes,
        from_is_deleted,
        from_maxwell,
        from_upsert_kafka,
        to_debezium,
        to_delta_cdf,
        to_is_deleted,
        to_maxwell,
        to_upsert_kafka,
    )
    from forebay.spark.changelog.current_view import current_view
    from forebay.spark.changelog.materialize import changelog_join, deduplicate, latest_per_key, materialize, normalize
    from forebay.spark.changelog.strategy import changelog_mode
    from forebay.spark.changelog.targets.archive import ArchiveTarget, read_archive, write_archive
    from forebay.spark.changelog.targets.delta import DeltaTarget
    from forebay.spark.changelog.targets.postgres import PostgresTarget
    from forebay.spark.changelog.targets.target import apply_changes
    from forebay.spark.keys.row_order import upsert_keys
    from forebay.spark.keys.set_keys import with_upsert_key

_LAZY = {
    "ArchiveTarget": "forebay.spark.changelog.targets.archive",
    "DeltaTarget": "forebay.spark.changelog.targets.delta",
    "PostgresTarget": "forebay.spark.changelog.targets.postgres",
    "apply_changes": "forebay.spark.changelog.targets.target",
    "changelog_join": "forebay.spark.changelog.materialize",
    "changelog_mode": "forebay.spark.changelog.strategy",
    "current_view": "forebay.spark.changelog.current_view",
    "deduplicate": "forebay.spark.changelog.materialize",
    "from_append": "forebay.spark.changelog.converting",
    "from_changes": "forebay.spark.changelog.converting",
    "from_debezium": "forebay.spark.changelog.converting",
    "from_delta_cdf": "forebay.spark.changelog.converting",
    "from_hudi": "forebay.spark.changelog.converting",
    "from_iceberg_changes": "forebay.spark.changelog.converting",
    "from_is_deleted": "forebay.spark.changelog.converting",
    "from_maxwell": "forebay.spark.changelog.converting",
    "from_upsert_kafka": "forebay.spark.changelog.converting",
    "latest_per_key": "forebay.spark.changelog.materialize",
    "materialize": "forebay.spark.changelog.materialize",
    "normalize": "forebay.spark.changelog.materialize",
    "read_archive": "forebay.spark.changelog.targets.archive",
    "to_debezium": "forebay.spark.changelog.converting",
    "to_delta_cdf": "forebay.spark.changelog.converting",
    "to_is_deleted": "forebay.spark.changelog.converting",
    "to_maxwell": "forebay.spark.changelog.converting",
    "to_upsert_kafka": "forebay.spark.changelog.converting",
    "upsert_keys": "forebay.spark.keys.row_order",
    "with_upsert_key": "forebay.spark.keys.set_keys",
    "write_archive": "forebay.spark.changelog.targets.archive",
}

__all__ = [
    "ArchiveTarget",
    "ChangelogMode",
    "DeltaTarget",
    "PostgresTarget",
    "RowKind",
    "apply_changes",
    "changelog_join",
    "changelog_mode",
    "current_view",
    "deduplicate",
    "from_append",
    "from_changes",
    "from_debezium",
    "from_delta_cdf",
    "from_hudi",
    "from_iceberg_changes",
    "from_is_deleted",
    "from_maxwell",
    "from_upsert_kafka",
    "latest_per_key",
    "materialize",
    "normalize",
    "read_archive",
    "stamp_changes",
    "to_debezium",
    "to_delta_cdf",
    "to_is_deleted",
    "to_maxwell",
    "to_upsert_kafka",
    "upsert_keys",
    "with_upsert_key",
    "write_archive",
]

__getattr__, __dir__ = lazy_names(
    "forebay.changelog", _LAZY, __all__, dict.fromkeys(("numpy", "pyspark"), "spark,changelog")
)
