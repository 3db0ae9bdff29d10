# SPDX-License-Identifier: Apache-2.0
"""Declares what a DataFrame of changes is: its key, its images, its history (C16)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import DataFrame

from forebay.errors import ConfigurationError
from forebay.spark.changelog.columns import key_names
from forebay.spark.keys.plan.plan_node import plan_hash
from forebay.spark.keys.set_keys import set_key, set_metadata
from forebay.table.changelog.shape import CHANGE_TYPE, SEQUENCE
from forebay.table.changelog.traits import ChangeTraits, HistoryName, ImagesName
from forebay.table.keys.key_spec import KeySpec


def from_changes(
    df: DataFrame,
    key: str | Sequence[str] = (),
    *,
    images: ImagesName = "upsert",
    history: HistoryName = "unknown",
    ordered: bool = False,
) -> DataFrame:
    """Declare that a DataFrame with `_change_type` is a changelog, and what its changes hold.

    The plan of a DataFrame that forebay did not make shows neither. If the declaration is wrong, results are wrong.

    Args:
        df: A batch or streaming DataFrame with `_change_type`. `_split` and `_pos`, and `_sequence` are taken to be as
            in every changelog: comparable within a split, and over all rows (of one `_log`, if there is one).
        key: The columns that identify a row of the changelog.
        images: `full`: each update has `update_preimage` with the whole old row, and each delete the whole row.
            `upsert`: old rows are missing, or have the columns of the key alone. `append`: there are only inserts.
        history: `complete`: each change comes exactly once, from the first one of its row on. `unknown`: changes may
            come again, and the first ones may be missing.
        ordered: Whether the changes of each key arrive in order.

    Raises:
        ConfigurationError: There is no column `_change_type`, a column does not exist, or a value is unknown.
    """
    check_changelog(df)
    columns = key_names(df, key) if key else ()
    return declare(df, replace(ChangeTraits.named(images, history), asserted=True), columns, ordered=ordered)


def declare(df: DataFrame, traits: ChangeTraits, key: Sequence[str] = (), *, ordered: bool = False) -> DataFrame:
    """Return a changelog with its traits, and its primary key, if any. Called by functions that make changes."""
    columns = [field.name for field in df.schema]
    order = (SEQUENCE,) if SEQUENCE in columns else ()
    changes = {CHANGE_TYPE: traits.metadata(plan_hash(df), tuple(columns), tuple(key))}
    if not key:
        return set_metadata(df, changes)
    return set_key(df, KeySpec.keyed_by(key, cdc=True, ordering=order), ordered=ordered, added=changes)


def check_changelog(df: DataFrame) -> None:
    """Check that a DataFrame has `_change_type`.

    Raises:
        ConfigurationError: It has not.
    """
    if CHANGE_TYPE not in df.columns:
        raise ConfigurationError(
            f"the DataFrame is not a changelog: it has no column {CHANGE_TYPE!r}, only {', '.join(df.columns)}",
            advice="make a changelog of it with a from_… function, such as from_append for rows that never change",
        )
