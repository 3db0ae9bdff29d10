# SPDX-License-Identifier: Apache-2.0
"""What all tests of changelogs and their state share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _nothing_is_flushed_to_disk(monkeypatch):
    """No machine fails here, and the tests write ten thousand files."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
