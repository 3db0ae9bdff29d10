# SPDX-License-Identifier: Apache-2.0
"""Streaming keys: which columns order and identify rows. All public names are here.

Names that need Spark are imported on first use, so `import forebay.keys` needs only pyarrow.
"""

from __future__ import annotations

from importlib import import_module

_LAZY: dict[str, str] = {}

__all__: list[str] = []


def __getattr__(name: str) -> object:
    """Import a lazy name on first use (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module 'forebay.keys' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """Return the public names, including lazy ones."""
    return __all__
