# SPDX-License-Identifier: Apache-2.0
"""Runs the command line by `python -m forebay`."""

from __future__ import annotations

import sys

from forebay.cli import main

if __name__ == "__main__":
    sys.exit(main())
