# SPDX-License-Identifier: Apache-2.0
"""Makes the examples importable by name, as they are when a user runs one."""

from __future__ import annotations

import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"

# Last, so that nothing there can stand in for an installed module.
sys.path.append(str(EXAMPLES))
