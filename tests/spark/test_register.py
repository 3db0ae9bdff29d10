# SPDX-License-Identifier: Apache-2.0
"""What `register` checks, captures and refuses."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

from forebay import registry
from forebay.errors import ConfigurationError, ContractError, unwrap
from forebay.framework.simple import SimpleSource
from forebay.spark import register as register_module
from forebay.spark import session as workers
from forebay.spark.data_source import installed_format
from forebay.spark.processes import dumps, loads
from forebay.spark.register import capture, read, register
from forebay.spark.session import s3a_settings
from forebay.version import __version__

N = pa.schema({"n": pa.int64()})


class Two(SimpleSource):
    def schema(self):
        return N

    def read(self, split):
        yield {"n": 2}


@pytest.fixture
def fresh(monkeypatch):
    """A registry of its own, without what other tests registered."""

    def make(built_ins):
        made = registry.Registry(built_ins, group="")
        for module in ("register", "session"):
            monkeypatch.setattr(f"forebay.spark.{module}.default_registry", made)
        return made

    return make


def test_the_names_are_returned_in_order(spark):
    class First(Two):
        name = "first_one"

    assert register(spark, First, Two) == ("first_one", "two")


def test_registering_a_changed_class_again_replaces_it(spark):
    def make(value):
        class Changing(SimpleSource):
            def schema(self):
                return N

            def read(self, split):
                yield {"n": value}

        return Changing

    for value in (1, 2):
        register(spark, make(value))
        assert spark.read.format("changing").load().first()[0] == value


def test_each_session_has_its_own(spark):
    assert register(spark, Two) == ("two",)
    other = spark.newSession()
    spark.createDataFrame([(1,)], "x int").count()  # so the first one is active
    assert register(other, Two) == ("two",)
    assert other.read.format("two").load().first()[0] == 2
    assert read(other, Two()).collect()[0][0] == 2
    spark.createDataFrame([(1,)], "x int").count()
    assert type(spark).getActiveSession()._jsparkSession.equals(spark._jsparkSession)
    assert register(other, Two) == ("two",)
    assert type(spark).getActiveSession()._jsparkSession.equals(spark._jsparkSession), "the active session stays"


def test_an_instance_is_refused_with_the_call_that_takes_it(spark):
    with pytest.raises(ConfigurationError, match="not a source class") as caught:
        register(spark, Two())
    assert "forebay.read" in str(caught.value.advice)
    with pytest.raises(ConfigurationError, match="is not a source"):
        read(spark, Two)


def test_a_class_with_missing_methods_is_refused_by_their_names(spark):
    class Half(SimpleSource):
        def schema(self):
            return N

    with pytest.raises(ConfigurationError, match=r"Half does not define read\(\)"):
        register(spark, Half)  # type: ignore[type-abstract]  # this is the mistake


def test_an_attribute_where_a_method_belongs_is_refused(spark):
    class Mistaken(Two):
        schema = N  # type: ignore[assignment]  # this is the mistake

    with pytest.raises(ConfigurationError, match=r"Mistaken\.schema is .*not a method"):
        register(spark, Mistaken)


def test_a_forgotten_session_is_noticed():
    with pytest.raises(ConfigurationError, match="is not a Spark session"):
        register(Two)


def test_an_option_with_the_name_of_a_host_option_is_refused(spark):
    class Clashing(Two):
        num_partitions: int = 3

    with pytest.raises(ContractError, match="num_partitions") as caught:
        register(spark, Clashing)
    assert caught.value.rule == "OPT-3"


def test_two_classes_of_one_name_in_one_call_are_refused(spark):
    class Other(Two):
        name = "TWO"

    with pytest.raises(ConfigurationError, match="two of the sources to register"):
        register(spark, Two, Other)


@pytest.mark.parametrize("taken", ["csv", "kafka", "Parquet"])
def test_a_name_of_sparks_own_is_refused_with_the_next_step(spark, taken):
    class Taken(Two):
        name = taken

    with pytest.raises(ConfigurationError, match="Spark refuses the format name") as caught:
        register(spark, Taken)
    assert "name =" in str(caught.value.advice)


def test_an_impossible_name_is_refused(spark):
    class Odd(Two):
        name = "two words"

    with pytest.raises(ConfigurationError, match="'two words' is not a valid format name"):
        register(spark, Odd)


def test_a_source_that_holds_what_cannot_travel_is_refused_with_the_next_step(spark):
    lock = threading.Lock()

    class Holding(SimpleSource):
        def schema(self):
            return N

        def read(self, split):
            with lock:
                yield {"n": 1}

    with pytest.raises(ConfigurationError, match="cannot be sent") as caught:
        register(spark, Holding)
    assert "cached" in str(caught.value.advice)
    assert "holding" not in register(spark)  # and it fails nothing that comes later


def test_without_sources_everything_installed_is_registered_and_nothing_imported(spark, fresh):
    fresh([registry.Registration("ghost", "no_such_package.ghost:Ghost", install="pip install ghost")])
    assert register(spark) == ("ghost",)


def test_a_broken_source_breaks_only_the_query_that_uses_it(spark, fresh):
    made = fresh([registry.Registration("ghost_source", "no_such_package.ghost:Ghost", install="pip install ghost")])
    made.register_class(Two)
    assert register(spark) == ("ghost_source", "two")
    assert spark.read.format("two").load().first()[0] == 2
    with pytest.raises(Exception, match="ghost_source") as caught:
        spark.read.format("ghost_source").load()
    error = unwrap(caught.value)
    assert isinstance(error, ConfigurationError)
    assert "ghost_source" in error.message


def test_what_planners_cannot_see_is_captured(spark):
    captured = capture(spark)
    assert (captured.parallelism, captured.time_zone) == (2, "Asia/Tokyo")
    assert captured.checkpoint_location is None
    spark.conf.set("spark.sql.streaming.checkpointLocation", "/tmp/here")
    try:
        assert capture(spark).checkpoint_location == "/tmp/here"
        assert capture(spark).defaults()["state_location"] == "/tmp/here/_forebay"
        hadoop = spark.sparkContext._jsc.hadoopConfiguration()
        before = hadoop.get("fs.defaultFS")
        hadoop.set("fs.defaultFS", "hdfs://names:8020/")
        try:  # a path without a scheme is there, not on this machine
            assert capture(spark).checkpoint_location == "hdfs://names:8020/tmp/here"
            assert "state_location" not in capture(spark).defaults()
        finally:
            hadoop.set("fs.defaultFS", before)
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


@pytest.mark.parametrize("version", ["4.1.2", "3.5.8", "odd"])
def test_an_old_spark_is_refused(spark, monkeypatch, version):
    monkeypatch.setattr(pyspark, "__version__", version)
    for call in (lambda: register(spark, Two), lambda: read(spark, Two())):
        with pytest.raises(ConfigurationError, match=r"needs 4\.2 or newer"):
            call()


@pytest.mark.parametrize("version", ["4.2.0", "4.10.1", "5.0.0.dev1"])
def test_a_new_spark_is_accepted(spark, monkeypatch, version):
    monkeypatch.setattr(pyspark, "__version__", version)
    monkeypatch.setattr(register_module, "check_workers", lambda _: None)
    register_module._check_session(spark)


# ---- workers that run another Python


class FakeContext:
    """As much of a SparkContext as the check needs; runs the probe as a worker would."""

    applicationId = "app"  # noqa: N815 - Spark's name

    def __init__(self, command, answer):
        self.pythonExec = command
        self.answer = answer
        self.jobs = 0

    def parallelize(self, *_):
        return self

    def map(self, _):
        return self

    def collect(self):
        self.jobs += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return [self.answer]


class FakeSession:
    def __init__(self, command, answer=None):
        self._sc = FakeContext(command, answer)


@pytest.fixture(autouse=True)
def _nothing_was_checked(monkeypatch):
    monkeypatch.setattr(workers, "_checked", set())


def test_the_same_interpreter_costs_no_job():
    session = FakeSession(sys.executable)
    workers.check_workers(session)
    assert session._sc.jobs == 0


def test_another_name_of_the_same_interpreter_is_the_same(tmp_path):
    assert workers.same_interpreter(sys.executable)
    other = Path(sys.executable).with_name(f"python{sys.version_info.major}")
    assert workers.same_interpreter(str(other)) == other.exists()
    (tmp_path / "python").symlink_to(sys.executable)
    assert not workers.same_interpreter(str(tmp_path / "python")), "another environment links to the same binary"
    assert not workers.same_interpreter("no-such-python")


def test_workers_without_forebay_are_an_error_that_says_what_to_set():
    session = FakeSession("/usr/bin/other-python", ("/usr/bin/other-python", None, "No module named 'forebay'"))
    with pytest.raises(ConfigurationError, match="No module named 'forebay'") as caught:
        workers.check_workers(session)
    assert "/usr/bin/other-python" in caught.value.message
    assert "PYSPARK_PYTHON" in str(caught.value.advice)


def test_workers_of_another_python_version_are_an_error_that_says_what_to_set():
    problem = RuntimeError("Job aborted\nPySparkRuntimeError: [PYTHON_VERSION_MISMATCH] 3.9 is not 3.11\n  at x")
    with pytest.raises(ConfigurationError, match="PYTHON_VERSION_MISMATCH") as caught:
        workers.check_workers(FakeSession("python-old", problem))
    assert "PYSPARK_PYTHON" in str(caught.value.advice)


def test_workers_with_another_version_of_forebay_are_a_warning():
    with pytest.warns(UserWarning, match=r"forebay 0\.0\.1"):
        workers.check_workers(FakeSession("elsewhere/python", ("/elsewhere/python", "0.0.1", "")))


def test_another_interpreter_that_has_forebay_is_fine_and_is_asked_once():
    session = FakeSession("elsewhere/python", ("/elsewhere/python", __version__, ""))
    workers.check_workers(session)
    workers.check_workers(session)
    assert session._sc.jobs == 1


def test_the_probe_tells_what_a_worker_is_and_travels_by_value(spark):
    found = spark.sparkContext.parallelize([0], 1).map(workers._probe()).collect()[0]
    assert workers.same_interpreter(found[0])
    assert found[1:] == (__version__, "")


# ---- from scripts and modules of the user's own


SCRIPT = """
import os, sys
import forebay
import pyarrow as pa
from pyspark.sql import SparkSession
{imports}

class Countdown(forebay.SimpleSource):
    start: int = 10
    token: forebay.Secret = forebay.Secret("none")

    def schema(self):
        return pa.schema({{"n": pa.int64()}})

    def read(self, split):
        for i in range(split.position or 0, self.start):
            yield {{"n": {value}}}

spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
try:
    forebay.register(spark, Countdown)
    print([row.n for row in spark.read.format("countdown").option("start", 3).load().collect()])
    print([row.n for row in forebay.read(spark, Countdown(start=2)).collect()])
except Exception as error:
    print(type(error).__name__, error)
"""


def run_script(folder, text, **environment):
    script = folder / "script.py"
    script.write_text(text)
    names = {name: value for name, value in os.environ.items() if name not in environment}
    names |= {name: value for name, value in environment.items() if value is not None}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=550, env=names, cwd="/", check=False
    )
    return done.stdout + done.stderr


@pytest.mark.soak
def test_a_class_of_a_script_and_a_module_beside_it_are_read(tmp_path):
    (tmp_path / "beside.py").write_text("FACTOR = 10\n\ndef scaled(n):\n    return FACTOR * n\n")
    text = SCRIPT.format(imports="import beside", value="beside.scaled(self.start - i)")
    out = run_script(tmp_path, text, PYTHONSAFEPATH=None)
    assert "[30, 20, 10]" in out, out
    assert "[20, 10]" in out


@pytest.mark.soak
def test_an_interpreter_without_forebay_is_noticed_by_register(tmp_path):
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    out = run_script(tmp_path, SCRIPT.format(imports="", value="i"), PYSPARK_PYTHON=str(bare))
    assert "ConfigurationError Spark's workers run" in out, out
    assert "PYSPARK_PYTHON" in out


def test_a_module_that_is_not_installed_travels_by_value_with_what_it_imports(tmp_path, monkeypatch):
    (tmp_path / "loose_helper.py").write_text("def twice(n):\n    return 2 * n\n")
    (tmp_path / "loose_source.py").write_text(
        "import pyarrow as pa\nimport loose_helper\nfrom forebay.framework.simple import SimpleSource\n"
        "class Loose(SimpleSource):\n"
        "    start: int = 1\n"
        "    def schema(self): return pa.schema({'n': pa.int64()})\n"
        "    def read(self, split): yield {'n': loose_helper.twice(self.start)}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    loose = importlib.import_module("loose_source")
    payload = dumps(loose.Loose, "loose")
    program = (
        f"import pickle\ncls = pickle.loads({payload!r})\n"
        "from forebay.framework.split import Split\nprint(list(cls(start=21).read(Split('a'))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[{'n': 42}]", done.stderr


def test_an_installed_class_travels_by_name():
    from forebay.framework.tasks.assign_tasks import cut

    assert b"forebay.framework.tasks.assign_tasks" in dumps(cut, "x")
    assert len(dumps(cut, "x")) < 200


def test_what_cannot_be_imported_where_it_arrives_is_an_error_with_the_next_step():
    payload = dumps(Two, "two").replace(b"forebay.framework.simple", b"forebay.framework.simplx")
    with pytest.raises(ConfigurationError, match="cannot import") as caught:
        loads(payload, "two")
    assert "install it on every worker" in str(caught.value.advice)


# ---- found by Spark itself


@pytest.mark.parametrize("name", ["forebay_files", "forebay_rate"])
def test_the_discovery_module_is_tiny_and_cannot_raise(root, name, monkeypatch):
    text = (root / f"pyspark_{name}.py").read_text()
    body = text.split('"""')[2]
    assert len([line for line in body.splitlines() if line.strip()]) <= 8
    scope: dict[str, object] = {}
    exec(compile(text, name, "exec"), scope)
    found = scope["DefaultSource"]
    assert isinstance(found, type)
    assert found.name() == name  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "forebay.spark.data_source", None)
    scope = {}
    exec(compile(text, name, "exec"), scope)
    assert "DefaultSource" not in scope


@pytest.mark.skipif(
    importlib.util.find_spec("pyspark_forebay_rate") is None, reason="the wheel is not installed, only the package"
)
def test_spark_finds_a_source_that_nobody_registered(spark):
    with pytest.raises(Exception, match="no_such_option") as caught:
        spark.newSession().read.format("forebay_rate").option("no_such_option", 1).load()
    assert isinstance(unwrap(caught.value), ConfigurationError)


def test_the_class_of_a_format_is_picklable_and_named_after_it():
    found = installed_format("forebay_rate")
    assert found.name() == "forebay_rate"
    assert re.search("forebay_rate", found.__name__)


def test_settings_of_hadoop_s_s3_connector_are_secrets(spark):
    odd = "a -> b\n,c)"
    spark.conf.set("fs.s3a.secret.key", odd)
    try:
        found = s3a_settings(spark, spark.sparkContext)
    finally:
        spark.conf.unset("fs.s3a.secret.key")
    assert found["fs.s3a.secret.key"].reveal() == odd
    assert odd not in repr(found)
