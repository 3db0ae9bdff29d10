# SPDX-License-Identifier: Apache-2.0
"""Changelogs: rows with a change kind, converted, materialized and applied to targets. All public names are here.

Names that need Spark are imported on first use, so `import forebay.changelog` needs only pyarrow.
"""

from __future__ import annotations

from importlib import import_module

from forebay.changelog.row_kind import RowKind

_LAZY: dict[str, str] = {}

__all__ = ["RowKind"]


def __getattr__(name: str) -> object:
    """Import a lazy name on first use (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module 'forebay.changelog' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """Return the public names, including lazy ones."""
    return __all__
