# SPDX-License-Identifier: Apache-2.0
"""The law of arrows: which room may know which (docs/architecture.md says why)."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "forebay"

LEAVES = {"errors", "options", "clock", "lazy_names", "registry", "retry", "text_tables", "version"}
# What a room may import beside itself and the leaves. The door may import everything.
ROOMS: dict[str, set[str]] = {
    "stores": set(),
    "state": {"stores"},
    "formats": {"stores"},
    "watermarks": set(),
    "table/keys": set(),
    "table/changelog": {"table/keys", "formats", "state", "stores"},
    "table/index": {"table/changelog", "formats", "state", "stores"},
    "framework": {"watermarks", "state"},
    "sources": {"framework", "formats", "stores", "watermarks", "table/keys", "table/changelog"},
    "spark": {"framework", "inspection", "table/keys", "table/changelog", "table/index"},
    "inspection": {"framework", "state", "stores", "table/index"},
    "cli": {"framework", "inspection", "sources", "spark", "testkit", "table/changelog", "table/index"},
    "__main__": {"cli"},
    "testkit": {"spark", "framework", "state", "watermarks", "table/changelog"},
}
# Doors hold public names alone, lazily; they may import everything, and nothing imports them.
DOORS = {"", "changelog", "index", "keys"}

# Inside framework: hosts stand on machinery, machinery on the contract. The values are the parts of the machinery,
# which do not know one another; a name that is not here is a file of the contract.
MACHINERY = {
    "reading": "reading",
    "simple": "reading",
    "coordination": "coordination",
}
HOSTS = {"inprocess", "microbatch", "tasks"}
# Micro-batches are read by the tasks that read a batch, too.
SHARED = ("microbatch", "tasks")

# Threads, locks and timers come from one Runtime object, or nothing could be simulated.
THREADED = {
    "framework/runtime/runtime.py": "the one place that starts threads",
    "sources/kafka/enumerator.py": "a lock: progress is committed beside a discovery, in process",
    "framework/runtime/clients.py": "a lock round the clients that all tasks of a process share",
    "sources/files/parquet_footers.py": "footers of many files, read at a time inside one call of the planner",
    "state/s3_state_store.py": "writers of one object at the same time, inside one call of the caller",
    "stores/s3/": "requests ahead of the reader, and listings of several ranges, inside one call of the caller",
    "table/index/daemon.py": "a long build holds up no round; no source is driven, and each step commits by one put",
    "spark/": "the engine's signals and threads are not ours to simulate",
    "table/index/edits.py": "pending edits of a new node, read at a time inside one call of the caller",
    "table/index/monitor.py": "an alert function of a user that does not return holds up no round",
    "table/index/opensearch_objects.py": "the same as of a node",
    "table/index/node.py": "a node runs in a user's process, and its refreshes wait for one another",
    "table/index/opened_segments.py": "threads of a user's process share the connections of a node",
    "testkit/": "embedded servers and the fault proxy run beside the test",
}
THREADING = {"threading", "_thread", "queue", "multiprocessing", "asyncio"}
EXECUTORS = {"ThreadPoolExecutor", "ProcessPoolExecutor"}

# Whatever is neither the standard library nor forebay: where it may be imported, anywhere in the file.
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    # Everywhere but in the leaves.
    "pyarrow": (*(f"{room}/" for room in ROOMS), "table/keys.py"),
    "pyspark": ("spark/", "testkit/"),
    "py4j": ("spark/", "testkit/"),
    "fsspec": ("stores/",),
    "boto3": ("state/", "stores/", "testkit/"),
    "botocore": ("state/", "stores/", "testkit/"),
    "kafka": ("sources/kafka/", "testkit/"),
    "crc32c": ("sources/kafka/",),
    "cryptography": ("sources/kafka/",),
    "cramjam": ("formats/", "sources/kafka/"),
    "zstandard": ("sources/kafka/",),
    "fastavro": ("formats/",),
    "polars": ("formats/",),
    "numpy": ("formats/", "sources/", "spark/", "table/changelog/", "table/index/"),
    "psycopg": ("spark/changelog/targets/postgres",),
    "opensearchpy": ("table/index/",),
    "typer": ("cli/",),
    "rich": ("cli/", "inspection/"),
    "opentelemetry": ("inspection/",),
    "pytest": ("testkit/",),
    "hypothesis": ("testkit/",),
    "moto": ("testkit/",),
}


# These only type checkers import, which have them built in.
FOR_CHECKERS = {"typing_extensions"}


class Import(NamedTuple):
    """One imported module, the name taken from it if any, and whether only type checkers import it."""

    file: str
    line: int
    module: str
    name: str | None
    checkers: bool

    def __str__(self) -> str:
        what = f"from {self.module} import {self.name}" if self.name else f"import {self.module}"
        return f"forebay/{self.file}:{self.line}: {what}"


@cache
def files() -> list[str]:
    return sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))


@cache
def imports(file: str, text: str | None = None) -> list[Import]:
    """Every import of a file, also those inside functions and under TYPE_CHECKING: they are knowledge too."""
    found = []
    nodes = list(ast.walk(ast.parse((PACKAGE / file).read_text(encoding="utf-8") if text is None else text)))
    blocks = [node for node in nodes if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    for_checkers = {inner for block in blocks for statement in block.body for inner in ast.walk(statement)}
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [Import(file, node.lineno, alias.name, None, node in for_checkers) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found += [Import(file, node.lineno, module, alias.name, node in for_checkers) for alias in node.names]
    return found


def parts(file: str) -> tuple[str, ...]:
    """The names on the way to a file below forebay/: ("framework", "reading", "queue"); the door is ()."""
    return tuple(name for name in file.removesuffix(".py").split("/") if name != "__init__")


def target(found: Import) -> tuple[str, ...] | None:
    """Where an import of forebay leads, as `parts`, or None if it leads elsewhere."""
    names = found.module.split(".")
    return tuple(names[1:]) if names[0] == "forebay" else None


def room(names: tuple[str, ...]) -> str:
    """The room that a file or module stands in; table/ is two rooms, and the door of the package is ""."""
    return "/".join(names[: 2 if names[:1] == ("table",) else 1])


def room_fault(file: str, found: Import) -> str | None:
    """What the import breaks of the law between rooms, or None."""
    if found.module.startswith("."):
        return "relative imports hide the arrow: write the whole name"
    names = target(found)
    here = room(parts(file))
    if names is None or here in DOORS:
        return None
    there = room(names)
    if there in DOORS:
        return "nothing imports the door: import the module that defines the name"
    if here == there or there in LEAVES:
        return None
    if here in LEAVES:
        return "a leaf imports the standard library and other leaves only"
    if there not in ROOMS.get(here, set()):
        return f"{here} may import {', '.join(sorted(ROOMS.get(here, set()) | {'leaves'}))} only"
    return None


def inner_fault(file: str, found: Import) -> str | None:
    """What the import breaks of the law inside framework and between sources, or None."""
    there, here = target(found), parts(file)
    if not there or len(here) < 2 or len(there) < 2 or here[0] != there[0] or here[1] == there[1]:
        return None
    if here[0] == "sources":
        return "sources do not import one another"
    if here[0] != "framework":
        return None
    if (here[1], there[1]) == SHARED:
        return None
    if there[1] in HOSTS:
        return "nothing in framework imports a host"
    if here[1] not in HOSTS and there[1] in MACHINERY and MACHINERY[there[1]] != MACHINERY.get(here[1]):
        return "only the hosts, and its own part, import the machinery"
    return None


def thread_fault(file: str, found: Import) -> str | None:
    """What the import breaks of the rule on threads, or None."""
    if found.module.split(".")[0] not in THREADING and found.name not in EXECUTORS:
        return None
    return None if file.startswith(tuple(THREADED)) else "threads and locks come from Runtime"


def foreign_fault(file: str, found: Import) -> str | None:
    """What the import breaks of the rule on other people's packages, or None."""
    top = found.module.split(".")[0]
    if top in sys.stdlib_module_names or top in {"forebay", ""} or (found.checkers and top in FOR_CHECKERS):
        return None
    if top not in THIRD_PARTY:
        return f"{top} is no dependency of forebay: name it in an extra, and here"
    return None if file.startswith(THIRD_PARTY[top]) else f"{top} belongs to {', '.join(THIRD_PARTY[top])}"


FAULTS = (room_fault, inner_fault, thread_fault, foreign_fault)


@pytest.mark.parametrize("rule", FAULTS, ids=lambda rule: rule.__name__)
def test_every_import_obeys_the_law(rule):
    broken = [f"{found}: {fault}" for file in files() for found in imports(file) if (fault := rule(file, found))]
    assert not broken, "\n" + "\n".join(sorted(set(broken)))


def test_every_file_stands_in_a_known_room():
    known = LEAVES | set(ROOMS) | DOORS | {"table"}
    strangers = [file for file in files() if room(parts(file)) not in known]
    assert not strangers, f"give these a room, or a new room its arrows in this test: {strangers}"


def test_no_permission_outlives_its_need():
    unused = [
        place
        for place in THREADED
        if place.endswith(".py")
        and (PACKAGE / place).exists()
        and not any(found.module.split(".")[0] in THREADING or found.name in EXECUTORS for found in imports(place))
    ]
    assert not unused, f"these import no threads any more: {unused}"


BREACHES = [
    ("errors.py", "import pyarrow", foreign_fault),
    ("clock.py", "from forebay.stores.store import Store", room_fault),
    ("options/spec.py", "import forebay.framework.split", room_fault),
    ("stores/local.py", "from forebay.formats.csv.format import read", room_fault),
    ("watermarks/strategy.py", "from forebay.framework.split import Split", room_fault),
    ("formats/csv/format.py", "from forebay.framework.reader import SourceReader", room_fault),
    ("framework/source.py", "def f():\n    from forebay.spark.data_source import plan", room_fault),
    ("framework/source.py", "from forebay import Source", room_fault),
    ("framework/source.py", "import forebay", room_fault),
    ("spark/changelog/materialize.py", "from forebay.changelog import RowKind", room_fault),
    ("table/changelog/shape.py", "from forebay.spark.changelog.materialize import materialize", room_fault),
    ("table/keys.py", "from forebay.table.changelog.shape import ChangelogMode", room_fault),
    ("sources/rate.py", "from forebay.keys import KeySpec", room_fault),
    ("framework/source.py", "from .split import Split", room_fault),
    ("framework/split.py", "from forebay.framework.reading.fetchers import Queue", inner_fault),
    ("framework/reading/fetchers.py", "from forebay.framework.coordination.tracker import Tracker", inner_fault),
    ("framework/coordination/x.py", "from forebay.framework.inprocess.run import run", inner_fault),
    ("framework/inprocess/run.py", "from forebay.framework.microbatch.planner import plan", inner_fault),
    ("framework/tasks/run.py", "from forebay.framework.microbatch.planner import plan", inner_fault),
    ("sources/files/source.py", "from forebay.sources.kafka.source import KafkaSource", inner_fault),
    ("sources/files/source.py", "from forebay.testkit.kit import check", room_fault),
    ("inspection/describe.py", "from forebay.cli import main", room_fault),
    ("cli/app.py", "from forebay.watermarks.strategy import Idleness", room_fault),
    ("table/index/node.py", "from forebay.spark.index.funnel import Funnel", room_fault),
    ("framework/inprocess/run.py", "import threading", thread_fault),
    ("framework/inprocess/run.py", "from concurrent.futures import ThreadPoolExecutor", thread_fault),
    ("framework/source.py", "if TYPE_CHECKING:\n    from pyspark.sql import SparkSession", foreign_fault),
    ("__init__.py", "from pyspark.sql import SparkSession", foreign_fault),
    ("sources/files/source.py", "import fsspec", foreign_fault),
    ("sources/files/source.py", "import requests", foreign_fault),
    ("formats/csv/format.py", "from typing_extensions import Buffer", foreign_fault),
]


@pytest.mark.parametrize(("file", "text", "rule"), BREACHES, ids=[f"{b[0]}: {b[1]}" for b in BREACHES])
def test_a_breach_is_noticed(file, text, rule):
    assert [rule(file, found) for found in imports(file, text)] != [None]


ALLOWED = [
    ("__init__.py", "from forebay.sources.files.source import FileSource"),
    (
        "cli/app.py",
        "import typer\nfrom forebay.inspection.describe import peek\nfrom forebay.registry import default_registry",
    ),
    ("framework/inprocess/run.py", "from forebay.framework.reading.fetchers import Queue"),
    ("framework/runtime/runtime.py", "import threading\nfrom forebay.framework.split import Split"),
    ("framework/reading/generator_reader.py", "from forebay.framework.simple import SimpleSource"),
    ("sources/files/source.py", "import pyarrow.csv\nfrom forebay.formats.csv.format import read\nimport os.path"),
    ("sources/hybrid/__init__.py", "from forebay.sources.hybrid.source import HybridSource"),
    ("spark/register.py", "from pyspark.sql import SparkSession\nfrom forebay.errors import FatalError"),
    ("formats/csv/format.py", "if TYPE_CHECKING:\n    from typing_extensions import Buffer"),
    ("framework/reader.py", "from concurrent.futures import Future"),
]


@pytest.mark.parametrize(("file", "text"), ALLOWED, ids=[a[0] for a in ALLOWED])
def test_what_the_law_allows_passes(file, text):
    assert [fault for found in imports(file, text) for rule in FAULTS if (fault := rule(file, found))] == []


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """Return the places that an arrow leads away from and that can be reached from themselves."""

    def reached(start: str) -> set[str]:
        visited: set[str] = set()
        left = [start]
        while left:
            new = arrows.get(left.pop(), set()) - visited
            visited |= new
            left += new
        return visited

    return sorted(place for place in arrows if place in reached(place))


def arrows_of_files() -> dict[str, set[str]]:
    names = {".".join(("forebay", *parts(file))): file for file in files()}
    arrows: dict[str, set[str]] = {}
    for name, file in names.items():
        for found in () if room(parts(file)) in DOORS else imports(file):
            whole = f"{found.module}.{found.name}"
            arrows.setdefault(name, set()).add(whole if whole in names else found.module)
    return {name: {there for there in arrow if there in names} for name, arrow in arrows.items()}


def test_no_files_import_one_another_in_a_circle():
    assert circle(arrows_of_files()) == []


def test_no_neighbours_in_a_folder_import_one_another_in_a_circle():
    """A folder counts as one place: what stands below it must not lead back to its neighbour."""
    arrows = arrows_of_files()
    folders = {name.rpartition(".")[0] for name in arrows}
    for folder in sorted(folders):
        between: dict[str, set[str]] = {}
        for name, there in arrows.items():
            for other in there:
                if name.startswith(f"{folder}.") and other.startswith(f"{folder}."):
                    here, away = (one.removeprefix(f"{folder}.").split(".")[0] for one in (name, other))
                    if here != away:
                        between.setdefault(here, set()).add(away)
        assert circle(between) == [], folder


def test_a_circle_is_noticed():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c"]
