# SPDX-License-Identifier: Apache-2.0
"""Random chains of transformations against Foundry's rules."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from key_chains import COLUMNS, Reference, Step, chains

from forebay.table.keys import KeySpec, declarations, key_metadata, without_key


def transformed(fields: dict[str, dict], step: Step, place: int) -> dict[str, dict]:
    """What an engine does to (name → metadata) that only carries metadata along with columns."""
    if step.what in ("key", "cdc"):
        key = KeySpec.keyed_by(step.columns, cdc=step.what == "cdc", deleted=step.name or None)
        added = key_metadata(key, f"key{place}")
        return {name: without_key(metadata) | added.get(name, {}) for name, metadata in fields.items()}
    lost = step.columns[0] if step.what in ("drop", "overwrite") else None
    if step.what == "drop":
        return {name: metadata for name, metadata in fields.items() if name != lost}
    renamed = {step.columns[0]: step.name} if step.what == "rename" else {}
    return {renamed.get(name, name): {} if name == lost else metadata for name, metadata in fields.items()}


@given(chains(("rename", "drop", "overwrite", "key", "cdc", "keep")), st.booleans())
def test_metadata_follow_the_rules_of_keys(steps, lenient):
    """P11: what is read from the metadata of columns is what the rules say, after every step."""
    reference, fields = Reference(lenient), {name: {} for name in COLUMNS}
    for place, step in enumerate(steps):
        reference.apply(step)
        fields = transformed(fields, step, place)
        found = declarations(fields.items())
        key = found[0].present(lenient=lenient) if found else KeySpec()
        assert key == KeySpec(reference.partition, reference.primary, reference.deleted)
