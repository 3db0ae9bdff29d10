# SPDX-License-Identifier: Apache-2.0
"""What every test stands on: the installed forebay, this interpreter for Spark's workers, the hypothesis profiles.

It imports no pyspark, so that parts without Spark are tested without Spark.
"""

from __future__ import annotations

import gc
import os
import sys
import sysconfig
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import forebay

ROOT = Path(__file__).parent.parent
S3_SERVERS = ["s3proxy-4.1.0", "versitygw-1.8.0"]
SITE_PACKAGES = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}

# Spark's Python workers are started with `-m` in the current directory: they must not import the checkout either.
os.environ["PYTHONSAFEPATH"] = "1"
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

# Machines differ in speed, so no deadline anywhere. `ci` finds the same thing every time; `dev` goes on searching.
settings.register_profile("ci", deadline=None, max_examples=12, derandomize=True, print_blob=True)
settings.register_profile("dev", deadline=None, print_blob=True)
settings.register_profile(
    "soak", deadline=None, max_examples=2000, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
OTHER_PROCESSES = "test_rdr_5_other_processes_read_the_same"
"""The rule of `SourceContract` that starts two processes: for one class in `make test`, for all in `make soak`."""
IN_PROCESSES = {"TestCsv"}
CORE_ALONE = {
    "TestKafka",
    "TestOrders",
    "TestFeed",
    "TestRedisStreams",
    "TestSegmentLog",
    "TestAckedQueue",
    "TestPartitionedLog",
}
"""Where `make test` runs the core of `SourceContract` alone, and `make soak` all: servers, and examples much alike."""
CORE = {
    "test_ctx_7_splits_added_later_are_found_once",
    "test_dis_1_latest_is_exclusive",
    "test_dis_2_slices_are_the_split",
    "test_dis_3_advance_is_exact",
    "test_enu_5_crashes_without_readers",
    "test_err_1_failing_discovery_is_an_error",
    "test_err_1_failing_reads_are_errors",
    "test_rdr_4_snapshots_are_complete",
    "test_rdr_5_resumes_anywhere",
    "test_rdr_5_resumes_from_snapshots",
    "test_rdr_9_closes_clean",
    "test_s4_ends_move_with_records",
    "test_spl_1_ids_outlive_growth",
    "test_sr_2_an_old_end_stays_an_end",
    "test_sr_2_rows_are_those_written",
    "test_sr_2_rows_written_later_follow_from_the_position_reached",
    "test_sr_4_finished_splits_are_complete",
    "test_src_1_copy_reads_the_same",
}
"""The rules of `SourceContract` that decide whether rows are lost or doubled."""
# Else a tenth of the CPU of small tests goes into collections of young objects, each of which hypothesis times.
gc.set_threshold(50_000, 20, 20)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
settings.load_profile(PROFILE)


def pytest_configure() -> None:
    """Refuse to test a checkout: a file missing from the wheel would go unnoticed."""
    place = Path(str(forebay.__file__)).parent
    if place.parent not in SITE_PACKAGES:
        raise pytest.UsageError(
            f"forebay is imported from {place}, not from the site-packages of {sys.prefix}: "
            "run `make test`, or `python -P -m pytest --import-mode=importlib` where the wheel is installed"
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let `make soak` run the properties too, with more examples, and all rules for all classes.

    A mark `soak("orc", "lz4")` is for the cases with one of these ids, and `soak(but=["orc"])` for all others.
    """
    for item in items:
        ids = f"-{item.callspec.id}-" if hasattr(item, "callspec") else ""
        item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "soak" or _is_for(mark, ids)]
        if PROFILE == "soak" and getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.soak)
        contract = getattr(item, "cls", None)
        if contract and item.name.startswith(OTHER_PROCESSES) and contract.__name__ not in IN_PROCESSES:
            item.add_marker(pytest.mark.soak)
        if "opensearch" in getattr(item, "fixturenames", ()):  # the server takes 30 s of CPU
            item.add_marker(pytest.mark.soak)
        of_the_kit = getattr(getattr(item, "obj", None), "__module__", "").startswith("forebay.")
        if contract and contract.__name__ in CORE_ALONE and of_the_kit and item.name not in CORE:
            item.add_marker(pytest.mark.soak)


def _is_for(mark: pytest.Mark, ids: str) -> bool:
    """Tell whether a mark `soak` is for the case with these ids, between hyphens."""
    if mark.args:
        return any(f"-{case}-" in ids for case in mark.args)
    return not any(f"-{case}-" in ids for case in mark.kwargs.get("but", ()))


_file = Path()
"""The file of the test that runs."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Keep the garbage collector from what there is before a file: checks of leaks look at all its objects, often.

    These are modules and tests, and what the files before have imported or left, such as boto3, reports and examples.
    """
    global _file  # noqa: PLW0603 - the process runs one test at a time
    if item.path != _file:
        _file = item.path
        _freeze()


def _freeze() -> None:
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Make two libraries, where a fixture has loaded them, find a thing once that they look for at each use.

    moto lists its services at each request (1 ms). py4j asks the JVM for each name of a class, and
    the JVM looks into all jars of Spark: 1 ms, or 11 ms for a name with its packages.
    """
    gateway: Any = sys.modules.get("py4j.java_gateway")
    for names in () if gateway is None else (gateway.JVMView, gateway.JavaPackage):
        if not hasattr(names.__getattr__, "cache_info"):
            names.__getattr__ = cache(names.__getattr__)
    backends: Any = sys.modules.get("moto.backends")
    if backends is not None and not hasattr(backends.list_of_moto_modules, "cache_info"):
        names = tuple(backends.list_of_moto_modules())
        backends.list_of_moto_modules = cache(lambda: names)
        _freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests measured and did not judge (`record_property("report", text)`)."""
    lines = [
        str(text)
        for report in terminalreporter.getreports("passed")
        for name, text in getattr(report, "user_properties", ())
        if name == "report"
    ]
    if lines:
        terminalreporter.section("measured, not judged")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout: where the sources, the Makefile and the examples are."""
    return ROOT


@pytest.fixture(scope="session")
def wheel() -> Path:
    """The built wheel: `make test` names it in FOREBAY_WHEEL."""
    named = os.environ.get("FOREBAY_WHEEL")
    found = [Path(named)] if named else sorted((ROOT / "build" / "wheel").glob("*.whl"))
    if not found:
        pytest.skip("no wheel was built: run `make test`")
    return found[-1].absolute()


@pytest.fixture(scope="session")
def s3_servers_by_name() -> Iterator[Callable[[str], Any]]:
    """Starts each server of S3 once."""
    module = import_module("s3_servers")
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(module.SERVERS[name]()))


@pytest.fixture(scope="session")
def s3_server(request: pytest.FixtureRequest, s3_servers_by_name: Callable[[str], Any]) -> Any:
    """A real server of S3, an `s3_servers.S3Server`."""
    return s3_servers_by_name(getattr(request, "param", S3_SERVERS[0]))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of S3 on s3proxy, in `make soak` on versitygw; the id of a test names its server."""
    if "s3_server" in metafunc.fixturenames:
        servers = [S3_SERVERS[0], *(pytest.param(name, marks=pytest.mark.soak) for name in S3_SERVERS[1:])]
        metafunc.parametrize("s3_server", servers, indirect=True, scope="session")


Tree = Callable[[Mapping[str, str]], str]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Makes a directory of files, given as {relative path: text}, and returns its path."""

    def make(files: Mapping[str, str]) -> str:
        root = tmp_path / uuid.uuid4().hex[:8]
        root.mkdir()
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return str(root)

    return make


@pytest.fixture
def memory() -> Iterator[Callable[[Mapping[str, bytes]], str]]:
    """Fills fsspec's store in memory, the stand-in for remote ones; returns its URL."""
    fsspec = import_module("fsspec")
    fs = fsspec.filesystem("memory")
    root = f"memory://{uuid.uuid4().hex[:8]}"

    def make(files: Mapping[str, bytes]) -> str:
        for name, data in files.items():
            fs.pipe(f"{root}/{name}", data)
        return root

    yield make
    if fs.exists(root):
        fs.rm(root, recursive=True)
