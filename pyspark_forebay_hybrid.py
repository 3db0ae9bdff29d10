# SPDX-License-Identifier: Apache-2.0
"""Lets Spark find the format `forebay_hybrid` by itself, without `forebay.register(spark)`.

Spark imports every top-level module called `pyspark_*`, and one that fails hides the sources of all others: so this
one cannot fail. Registering is better where possible: it also captures what Spark's planners cannot see.
"""

from __future__ import annotations

try:
    from forebay.spark.data_source import installed_format

    DefaultSource = installed_format("forebay_hybrid")
except Exception:  # noqa: BLE001, S110 - see above; `forebay.register(spark)` tells what is wrong
    pass
