# SPDX-License-Identifier: Apache-2.0
"""The version of forebay, which the build reads from this file."""

from __future__ import annotations

__version__ = "0.1.0"
