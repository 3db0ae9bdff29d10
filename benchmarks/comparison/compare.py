# SPDX-License-Identifier: Apache-2.0
"""Runs the same source, orders of a paginated REST service, in each framework: `make comparison`.

Each program reads all orders, then those that came meanwhile; then again, killed in the middle. Printed as the table of
docs/comparison.md. Each other framework is installed into an environment of its own, below build/comparison.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "examples"))

import pyarrow.parquet as pq  # noqa: E402 - after sys.path
from order_service import OrderService  # noqa: E402

WORK = ROOT / "build" / "comparison"
FIRST, LATER = 3_000, 600
KILL_AT = (8, 20, 33, 47)
"""Requests after which the program is killed, one after the other, until a start ends by itself."""


class Service(OrderService):
    """Says nothing of connections that end.

    Args:
        pause: Seconds for an answer, so that a program can be killed in the middle.
        drop_each: Every n-th connection ends without an answer; 0 for none.
    """

    def __init__(self, pause: float = 0.0, drop_each: int = 0) -> None:
        super().__init__(FIRST)
        self._pause, self._drop_each = pause, drop_each
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]

    def answer(self, path: str, query: dict[str, str]) -> object:
        """Return the answer to one request."""
        if self._drop_each and self.requests % self._drop_each == 0:
            raise ConnectionError
        time.sleep(self._pause)
        return super().answer(path, query)


def lines_of(out: Path) -> list[int]:
    """Return the ids in JSON lines below a directory, also compressed ones."""
    found = []
    for path in sorted(out.rglob("*.jsonl*")):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        found += [json.loads(line) for line in text.splitlines()]
    return [int(row["id"]) for row in found if "id" in row]


def committed(out: Path) -> list[int]:
    """Return the ids in the Parquet files that Spark's file sink has committed."""
    files = set()
    for log in sorted((out / "_spark_metadata").glob("[0-9]*")):
        files |= {json.loads(line)["path"] for line in log.read_text().splitlines()[1:]}
    return [n for one in sorted(files) for n in pq.read_table(unquote(urlsplit(one).path))["id"].to_pylist()]


def run_singer(python: str, url: str, state: Path, out: Path) -> subprocess.Popen[bytes]:
    """Start a tap and what stands for its target: it keeps rows and state when a state message comes."""
    return start(python, HERE / "singer_target.py", python, str(HERE / "singer_orders.py"), url, str(state), str(out))


def run_program(program: str) -> Callable[[str, str, Path, Path], subprocess.Popen[bytes]]:
    """Return what starts a program with the address, the place of its state and that of its output."""

    def run(python: str, url: str, state: Path, out: Path) -> subprocess.Popen[bytes]:
        return start(python, HERE / program, url, str(state), str(out))

    return run


def start(python: str, *command: object) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, with its output in a file."""
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "RUNTIME__DLTHUB_TELEMETRY": "false"}
    log = (WORK / "programs.log").open("ab")
    return subprocess.Popen(
        [python, *map(str, command)], env=environment, stdout=log, stderr=log, start_new_session=True, cwd=WORK
    )


def python_of(name: str, packages: list[str]) -> str:
    """Return the interpreter of a framework; make its environment first if there is none."""
    if not packages:
        return sys.executable
    home = WORK / "venv" / name.replace(" ", "-")
    if not (home / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([home / "bin" / "python", "-m", "pip", "install", "-q", *packages], check=True)
        (home / "done").touch()
    return str(home / "bin" / "python")


def lines_of_code(program: str) -> int:
    """Return the number of lines between `# begin` and `# end` that are not blank."""
    text = (HERE / program).read_text().partition("# begin")[2].partition("# end")[0]
    return sum(1 for line in text.splitlines() if line.strip())


def judge(ids: list[int], expected: int) -> str:
    """Describe which orders came how often."""
    counts = Counter(ids)
    lost, doubled = expected - len(counts), sum(counts.values()) - len(counts)
    return "each once" if not lost and not doubled else f"{lost} lost, {doubled} doubled"


class Framework(NamedTuple):
    """A program, the packages it needs, how to start it, and how to read its output."""

    program: str
    packages: list[str]
    run: Callable[[str, str, Path, Path], subprocess.Popen[bytes]]
    read: Callable[[Path], list[int]]


FRAMEWORKS = {
    "forebay": Framework("forebay_orders.py", [], run_program("forebay_orders.py"), committed),
    "PySpark": Framework("pyspark_orders.py", [], run_program("pyspark_orders.py"), committed),
    "Bytewax": Framework("bytewax_orders.py", ["bytewax==0.21.1"], run_program("bytewax_orders.py"), lines_of),
    "dlt": Framework("dlt_orders.py", ["dlt[filesystem]==1.31.0"], run_program("dlt_orders.py"), lines_of),
    "Meltano SDK": Framework("singer_orders.py", ["singer-sdk==0.54.9"], run_singer, lines_of),
}


def run_once(one: Framework, python: str, service: Service, home: Path, expected: int) -> str:
    """Run the program to its end, and judge its output."""
    failed = one.run(python, service.url, home / "state", home / "out").wait(300)
    return "the program fails" if failed else judge(one.read(home / "out"), expected)


def undisturbed(one: Framework, python: str, home: Path) -> list[str]:
    """Run twice, with more orders before the second run."""
    with Service() as service:
        first = run_once(one, python, service, home, FIRST)
        for region in ("north", "south", "west"):
            service.add_orders(region, LATER // 3)
        return [first, run_once(one, python, service, home, FIRST + LATER)]


def dropped(one: Framework, python: str, home: Path) -> str:
    """Run once against a service that drops connections."""
    with Service(drop_each=7) as service:
        return run_once(one, python, service, home, FIRST)


def killed(one: Framework, python: str, home: Path) -> str:
    """Kill the program after some requests, several times, then let it end."""
    with Service(pause=0.02) as service:
        for most in (*KILL_AT, 10**9):
            before = service.requests
            program = one.run(python, service.url, home / "state", home / "out")
            while program.poll() is None and service.requests - before < most:
                time.sleep(0.001)
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
        return judge(one.read(home / "out"), FIRST)


def main() -> None:
    """Print the table."""
    shutil.rmtree(WORK / "runs", ignore_errors=True)
    WORK.mkdir(parents=True, exist_ok=True)
    (WORK / "programs.log").unlink(missing_ok=True)
    print("| | lines | read | read again, with new orders | every 7th connection dropped | killed four times |")
    print("|---|---|---|---|---|---|")
    for name, one in FRAMEWORKS.items():
        python = python_of(name, one.packages)
        homes = [WORK / "runs" / f"{name}-{part}" for part in ("undisturbed", "dropped", "killed")]
        for home in homes:
            home.mkdir(parents=True)
        cells = [*undisturbed(one, python, homes[0]), dropped(one, python, homes[1]), killed(one, python, homes[2])]
        print(f"| {name} | {lines_of_code(one.program)} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
