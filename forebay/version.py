# SPDX-License-Identifier: Apache-2.0
"""The version of forebay: the one place it is written."""

from __future__ import annotations

__version__ = "0.1.0"
