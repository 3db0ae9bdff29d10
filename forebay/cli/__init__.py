# SPDX-License-Identifier: Apache-2.0
"""The command line `forebay`. Checks that the optional dependencies are installed before importing them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    Args:
        arguments: The arguments without the program's name; by default the arguments of this process.
    """
    missing = [name for name in ("numpy", "rich", "typer") if find_spec(name) is None]
    if missing:
        sys.stderr.write(f'forebay: the command line needs {" and ".join(missing)}: pip install "forebay[cli]"\n')
        return 1
    from forebay.cli.app import run

    return run(arguments)
