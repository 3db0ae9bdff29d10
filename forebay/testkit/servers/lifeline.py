# SPDX-License-Identifier: Apache-2.0
"""Runs a command, and kills it when the owner of this process dies, which closes standard input.

Started by path with ``python -I lifeline.py DIRECTORY COMMAND…`` in its own session; imports the standard library only,
so that it starts at once. When the owner has died, this process also removes the directory.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading


def main() -> int:
    """Run the command in the arguments; return its exit code. Kill the command when standard input ends."""
    directory, command = sys.argv[1], sys.argv[2:]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - our own command
    orphaned = threading.Event()

    def watch() -> None:
        while os.read(0, 1024):  # not by sys.stdin, whose lock would be held when this process ends
            pass
        orphaned.set()
        child.kill()

    # SIGTERM is passed on, so that the child can shut down cleanly.
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    if orphaned.is_set():
        shutil.rmtree(directory, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
