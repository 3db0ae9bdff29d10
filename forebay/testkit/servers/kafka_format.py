# SPDX-License-Identifier: Apache-2.0
"""Formats a Kafka broker's data directory as an earlier one was, without the JVM of Kafka's tool (0.6 s)."""

from __future__ import annotations

import base64
import os
import shutil
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_FEATURES = "bootstrap.checkpoint"
"""The file that says which features a formatted cluster has. It is the same for all brokers of one Kafka version."""
_OWN_FEATURES = frozenset(
    {"log.dirs", "log.dir", "metadata.log.dir", "process.roles", "unstable.feature.versions.enable"}
)
"""Properties with which Kafka's tool would write other files."""


def copy_format(library: Path, data: Path, given: Mapping[str, str], cluster: str, node: str) -> bool:
    """Format a directory with the features that an earlier broker kept; return False if Kafka's tool must format it.

    Args:
        library: The directory of Kafka's jars, where the features are kept.
        data: The data directory, which does not exist.
        given: The properties that the user of the broker set.
        cluster: The id of the cluster.
        node: The id of the node.
    """
    kept = library / _FEATURES
    if _OWN_FEATURES & given.keys() or not kept.exists():
        return False
    data.mkdir()
    shutil.copyfile(kept, data / _FEATURES)
    directory = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    text = f"version=1\ncluster.id={cluster}\nnode.id={node}\ndirectory.id={directory}\n"
    (data / "meta.properties").write_text(text, encoding="utf-8")
    return True


def keep_format(library: Path, data: Path, given: Mapping[str, str]) -> None:
    """Keep the features that Kafka's tool wrote, for later brokers. No effect where `library` is read-only."""
    made = data / _FEATURES
    if made.exists() and not _OWN_FEATURES & given.keys():
        with suppress(OSError):
            partial = library / f"{_FEATURES}.{os.getpid()}"
            shutil.copyfile(made, partial)
            partial.replace(library / _FEATURES)
