# SPDX-License-Identifier: Apache-2.0
"""The public API for streaming keys: the columns that order and identify the rows of a stream.

Names that need Spark are imported on first use, so `import forebay.keys` needs only pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.lazy_names import lazy_names
from forebay.table.keys import NONE, PER_SPLIT, Guarantee, KeySpec, OrderScope, stamp

if TYPE_CHECKING:
    from forebay.spark.keys.found_keys import keys_of
    from forebay.spark.keys.row_order import guarantee
    from forebay.spark.keys.set_keys import (
        KeyProfile,
        describe_keys,
        from_foundry_schema,
        key_by,
        key_profile,
        strip_keys,
        to_foundry_schema,
        union_keyed,
    )

_LAZY = {
    "KeyProfile": "forebay.spark.keys.set_keys",
    "describe_keys": "forebay.spark.keys.set_keys",
    "from_foundry_schema": "forebay.spark.keys.set_keys",
    "guarantee": "forebay.spark.keys.row_order",
    "key_by": "forebay.spark.keys.set_keys",
    "key_profile": "forebay.spark.keys.set_keys",
    "keys_of": "forebay.spark.keys.found_keys",
    "strip_keys": "forebay.spark.keys.set_keys",
    "to_foundry_schema": "forebay.spark.keys.set_keys",
    "union_keyed": "forebay.spark.keys.set_keys",
}

__all__ = [
    "NONE",
    "PER_SPLIT",
    "Guarantee",
    "KeyProfile",
    "KeySpec",
    "OrderScope",
    "describe_keys",
    "from_foundry_schema",
    "guarantee",
    "key_by",
    "key_profile",
    "keys_of",
    "stamp",
    "strip_keys",
    "to_foundry_schema",
    "union_keyed",
]

__getattr__, __dir__ = lazy_names("forebay.keys", _LAZY, __all__, {"pyspark": "spark"})
