# SPDX-License-Identifier: Apache-2.0
"""The effect of transformations on a key (K11–K17): pure functions from key to key, for every host.

A user-defined function over whole rows always loses the key (K16), so there is no function for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from forebay.table.keys.key_spec import KeySpec

JoinType = Literal["inner", "cross", "left", "right", "full", "semi", "anti"]


def after_rename(key: KeySpec, names: Mapping[str, str]) -> KeySpec:
    """Return the key after a rename of columns. `names` is {old name: new name} (K11)."""

    def renamed(columns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(name, name) for name in columns)

    return KeySpec(
        renamed(key.partition),
        None if key.primary is None else renamed(key.primary),
        None if key.deleted is None else names.get(key.deleted, key.deleted),
        renamed(key.ordering),
    )


def after_loss(key: KeySpec, lost: Collection[str], *, lenient: bool = False) -> KeySpec:
    """Return the key after columns are dropped or overwritten (K12, K13, K14).

    A partition key keeps its other columns. A primary key that loses a column is lost: the rest would merge records
    that are distinct. If the deletion flag is lost, the primary key is lost too: deleted records would come back. If
    one ordering column is lost, all are.

    Args:
        key: The key before.
        lost: The columns that are dropped or overwritten.
        lenient: Keep the rest of a primary key that loses a column, as Foundry does.
    """
    partition = tuple(name for name in key.partition if name not in lost)
    left = tuple(name for name in key.primary or () if name not in lost)
    deleted = None if key.deleted in lost else key.deleted
    if not lenient and (left != (key.primary or ()) or deleted != key.deleted):
        left = ()
    if not left:
        return KeySpec(partition)
    ordering = () if any(name in lost for name in key.ordering) else key.ordering
    return KeySpec(partition, left, deleted, ordering)


def after_stateful(key: KeySpec) -> KeySpec:
    """Return the key after an operator with state, such as an aggregate: the primary key is lost (K17)."""
    return KeySpec(key.partition)


def after_union(left: KeySpec, right: KeySpec) -> KeySpec:
    """Return the key after a union, an intersection or a difference: the key of both sides if equal, otherwise none."""
    return left if left == right else KeySpec()


def after_join(left: KeySpec, right: KeySpec, how: JoinType) -> KeySpec:
    """Return the key after a join: that of the right side for `right`, none for `full`, else that of the left side."""
    if how == "full":
        return KeySpec()
    return right if how == "right" else left
