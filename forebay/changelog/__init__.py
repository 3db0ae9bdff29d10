# SPDX-License-Identifier: Apache-2.0
"""Changelogs: rows with a change kind, converted, materialized and applied to targets. All public names are here.

Names that need Spark are imported on first use, so `import forebay.changelog` needs only pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from forebay.changelog.row_kind import RowKind

if TYPE_CHECKING:
    from forebay.spark.changelog.current_view import current_view as current_view
    from forebay.spark.changelog.joining import changelog_join as changelog_join
    from forebay.spark.changelog.keyed import deduplicate as deduplicate
    from forebay.spark.changelog.keyed import latest_per_key as latest_per_key
    from forebay.spark.changelog.keyed import normalize as normalize
    from forebay.spark.changelog.materialize import materialize as materialize

_LAZY = {
    "current_view": "forebay.spark.changelog.current_view",
    "changelog_join": "forebay.spark.changelog.joining",
    "deduplicate": "forebay.spark.changelog.keyed",
    "latest_per_key": "forebay.spark.changelog.keyed",
    "materialize": "forebay.spark.changelog.materialize",
    "normalize": "forebay.spark.changelog.keyed",
}

__all__ = [
    "RowKind",
    "changelog_join",
    "current_view",
    "deduplicate",
    "latest_per_key",
    "materialize",
    "normalize",
]


def __getattr__(name: str) -> object:
    """Import a lazy name on first use (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module 'forebay.changelog' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """Return the public names, including lazy ones."""
    return __all__
