# SPDX-License-Identifier: Apache-2.0
"""The command `forebay`: its output, errors and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest

from forebay.cli import kafka_lag, main
from forebay.errors import RetriableError
from forebay.framework.simple import SimpleSource
from forebay.options import Secret
from forebay.registry import default_registry
from forebay.version import __version__

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1704067200000,"conf":{}}'
SPARKS = '{"orders":{"0":12,"1":7}}'
SLOW = ["-b", "127.0.0.1:1", "-o", "kafka.default.api.timeout.ms=500", "-o", "fetchOffset.numRetries=0"]


def checkpoint(folder, *entries):
    """A checkpoint of Spark with one committed micro-batch with these offsets."""
    for name, text in {"offsets": "\n".join(["v1", METADATA, *entries]), "commits": "v1\n{}"}.items():
        (folder / name).mkdir()
        if entries:
            (folder / name / "0").write_text(text)
    return str(folder)


@pytest.fixture
def shown_text(capsys):
    """Run the command; return its exit code, output and errors, each in one line."""

    def run(*arguments):
        code = main(arguments)
        shown = capsys.readouterr()
        return code, shown.out, " ".join(shown.err.replace("│", " ").split())

    return run


def test_it_says_what_it_can_do_and_which_version_it_is(shown_text):
    code, shown, _ = shown_text("--help")
    assert code == 0
    for command in ("offsets", "describe", "peek", "kafka"):
        assert f" {command} " in shown
    assert shown_text("--version") == (0, f"forebay {__version__}\n", "")


@pytest.mark.parametrize("missing", ["numpy", "rich", "typer"])
def test_without_the_extra_it_says_how_to_install_it(missing):
    program = f"""
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == {missing!r} else found(name, *more)
from forebay.cli import main
code = main(["--version"])
assert not {{"typer", "rich"}} & set(sys.modules)
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f'forebay: the command line needs {missing}: pip install "forebay[cli]"\n'


def test_describe_shows_options_and_with_options_the_schema(shown_text):
    code, shown, _ = shown_text("describe", "forebay_rate")
    assert code == 0 and "rowsPerSecond" in shown and "int64" not in shown
    code, shown, _ = shown_text("describe", "forebay_rate", "-o", "rowsPerSecond=7")
    assert code == 0 and "7.0" in shown and "int64" in shown


def test_describe_hides_secrets(shown_text):
    code, shown, _ = shown_text("describe", "forebay_kafka", "-o", "subscribe=t", "-o", "kafka.bootstrap.servers=x:1",
                          "-o", "kafka.security.protocol=SSL", "-o", "kafka.ssl.truststore.location=/x.p12",
                          "-o", "kafka.ssl.truststore.password=hunter2")  # fmt: skip
    assert code == 0 and "bootstrap.servers" in shown and "hunter2" not in shown


class Refused(SimpleSource):
    """Its client writes the token into its errors."""

    place: str
    token: Secret

    def check(self):
        self.call("check")

    def schema(self):
        self.call("schema")

    def read(self, split):
        return []

    def call(self, place):
        if place == self.place:
            raise ConnectionError(f"GET https://h/?token={self.token.reveal()} refused")


@pytest.fixture
def refused():
    yield default_registry.register_class(Refused)
    default_registry.forget_class("refused")


@pytest.mark.parametrize("command", ["describe", "peek"])
@pytest.mark.parametrize("place", ["check", "schema"])
def test_what_a_source_raises_is_told_in_a_paragraph_without_its_secrets(shown_text, refused, command, place):
    code, shown, said = shown_text(command, refused, "-o", f"place={place}", "-o", "token=tok-abcdef123")
    assert (code, shown) == (1, "")
    assert "GET https://h/?token=*** refused" in said and "source: refused" in said


@pytest.mark.parametrize("command", ["describe", "peek"])
def test_names_of_files_cannot_control_the_terminal(shown_text, tmp_path, command):
    folder = tmp_path / "\x1bc\x9b"
    folder.mkdir()
    code, shown, said = shown_text(command, "forebay_files", "-o", f"path={folder}")
    assert (code, shown) == (1, "")
    assert "\\x1bc\\x9b" in said and said.isprintable()


def test_peek_shows_the_first_rows(shown_text):
    code, shown, _ = shown_text("peek", "forebay_rate", "-o", "startTime=0", "-o", "rows=5", "-n", "2")
    assert code == 0 and shown.splitlines()[-1] == "2 rows, perhaps more"


def test_report_writes_a_page_of_recorded_progress(shown_text, tmp_path):
    lines = [{"name": "orders", "timestamp": f"2026-01-01T00:00:0{second}.000Z", "sources": []} for second in range(2)]
    (tmp_path / "orders.jsonl").write_text("\n".join(map(json.dumps, lines)))
    page = tmp_path / "page.html"
    code, shown, _ = shown_text("report", str(tmp_path), "-f", str(page))
    assert code == 0 and str(page.name) in shown and "orders" in page.read_text("utf-8")


def test_offsets_shows_a_checkpoint(shown_text, tmp_path):
    code, shown, _ = shown_text("offsets", checkpoint(tmp_path, SPARKS))
    assert code == 0 and "micro-batch 0 is done" in shown and "not a source of forebay" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["describe", "nope"], 1, "no source has the name 'nope'"),
        (["peek", "forebay_rate", "-o", "rowPerSecond=1"], 1, "rowsPerSecond"),
        (["peek", "forebay_rate", "-o", "retryTimeout=5s"], 1, "retryTimeout is an option of reads on Spark"),
        (["peek", "forebay_rate", "-o", "stateStorage.key=x"], 1, "stateStorage.key is an option of reads on Spark"),
        (["peek", "forebay_rate", "-o", "seed=1 MB"], 1, "write for example 0"),
        (["peek", "forebay_rate", "-o", "hunter2"], 2, "NAME=VALUE"),
        (["peek", "forebay_rate", "-o", "rows=1", "-o", "rows=2"], 2, "rows is given twice"),
        (["offsets", "/nowhere/at/all"], 1, "is not a checkpoint of a streaming query"),
        (["report", "/nowhere/at/all"], 1, "there is no directory '/nowhere/at/all'"),
        (["report", "/"], 1, "forebay.record_progress"),
        (
            ["state", "show", "s3://b/x", "-o", "stateStorage.endpoint_url=x"],
            1,
            "stateStorage.endpoint_url is not the URL",
        ),
        (["kafka", "lag"], 2, "--checkpoint DIRECTORY or --group NAME"),
        (["kafka", "lag", "--group", "g"], 2, "--bootstrap-servers HOST:PORT"),
        (["kafka", "lag", "--group", "g", "-b", "x:1", "-o", "kafka.bootstrap.servers=y:1"], 2, "given twice"),
        (["kafka", "lag", "--checkpoint", "/x", "-b", "x:1", "-o", "kafka.group.id=g"], 2, "use --group NAME"),
        (["kafka", "lag", "--group", "g", "-b", "x:1", "--watch", "1", "--max-lag", "5"], 2, "cannot be combined"),
        (["kafka", "lag", "--group", "g", "-b", "x:1", "-o", "subscribe=t"], 1, "subscribe"),
        (["kafka", "lag", "--group", "g", "-b", "x:1", "-o", "kafka.enable.auto.commit=true"], 1, "positions"),
        (["kafka", "lag", "--checkpoint", "/nowhere", "-b", "x:1"], 1, "is not a checkpoint of a streaming query"),
        (["kafka", "lag", "--group", "g", *SLOW], 1, "no broker of 127.0.0.1:1 can be reached"),
    ],
)
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # kafka-python, when it is imported
def test_what_is_wrong_is_told_in_a_paragraph(shown_text, arguments, code, text):
    found, shown, said = shown_text(*arguments)
    assert (found, shown) == (code, "")
    assert text in said and "Traceback" not in said and "hunter2" not in said


def ours(source):
    return json.dumps({"v": 1, "source": source, "n": 0, "id": "x", "splits": [["eu", 0, 10]]})


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([SPARKS], "is a checkpoint of Spark's own Kafka source"),
        ([], "no micro-batch is planned yet"),
        (['{"logOffset":3}'], 'source (0) is not a source of forebay: {"logOffset":3}'),
        (["-"], "nothing has been planned yet"),
        (['{"v":99,"source":"forebay_kafka","n":3,"forebay":"9.0"}'], "newer forebay (9.0)"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # kafka-python, when it is imported
def test_a_checkpoint_without_positions_of_kafka_says_what_it_is(shown_text, tmp_path, entries, text):
    code, shown, said = shown_text("kafka", "lag", "--checkpoint", checkpoint(tmp_path, *entries), "-b", "127.0.0.1:1")
    assert (code, shown) == (1, "")
    assert text in said and "next step:" in said


@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # kafka-python, when it is imported
def test_a_password_on_the_command_line_is_not_repeated(shown_text):
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="hunter2hunter2";'
    login = ["-o", "kafka.security.protocol=SASL_PLAINTEXT", "-o", "kafka.sasl.mechanism=PLAIN"]
    for wrong in (jaas, jaas.replace("required", "perhaps")):
        code, _, said = shown_text(
            "kafka", "lag", "--group", "g", *SLOW, *login, "-o", f"kafka.sasl.jaas.config={wrong}"
        )
        assert code == 1 and "hunter2" not in said


def test_where_kafka_python_is_missing_its_extra_is_named(shown_text, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("forebay.sources.kafka.")]:
        if name.rpartition(".")[2] in {"lag", "cluster", "clients", "trouble"}:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kafka", None)
    code, _, said = shown_text("kafka", "lag", "--group", "g", "-b", "x:1")
    assert code == 1 and "'kafka'" in said and 'pip install "forebay[kafka]"' in said


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # kafka-python, when it is imported
def test_in_a_terminal_watching_draws_in_place_and_shows_why_it_cannot_look(monkeypatch, capsys):
    lag = import_module("forebay.sources.kafka.lag")
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    monkeypatch.setenv("TERM", "xterm")
    one = lag.PartitionLag("orders", 0, 5, 2005, 2000)
    outcomes = [one, RetriableError("no broker answers"), lag.PartitionLag("orders", 0, 2005, 2005, 0)]
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if not outcomes:
            raise KeyboardInterrupt

    def ask():
        found = outcomes.pop(0)
        if isinstance(found, Exception):
            raise found
        return [kafka_lag.LagReport("group", "g", "x:1", lag.Lag((found,)))]

    monkeypatch.setattr(kafka_lag, "time", SimpleNamespace(sleep=pause))
    (last,) = kafka_lag._shown(ask, str, 2.0)
    shown = capsys.readouterr().out
    assert last.lag.total == 0 and pauses == [2.0, 2.0, 2.0]
    assert "2,000" in shown and "no broker answers" in shown and "Ctrl-C ends" in shown
    assert "\x1b[" in shown  # drawn over what was there


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # kafka-python, when it is imported
def test_numbers_are_to_the_right_and_notes_only_where_there_are_some():
    lag = import_module("forebay.sources.kafka.lag")
    good, gone = lag.PartitionLag("orders", 0, 5, 2005, 2000), lag.PartitionLag("t", 11, 7, None, None, "it is gone")
    assert str(kafka_lag.LagReport("group", "g", "x:1", lag.Lag((good, gone), ("t: more",)))).splitlines() == [
        "group g, brokers x:1",
        "┌────────┬──────────────┬──────────┬───────┬───────┬────────────┐",
        "│ topic  │    partition │ position │   end │   lag │ note       │",
        "├────────┼──────────────┼──────────┼───────┼───────┼────────────┤",
        "│ orders │            0 │        5 │ 2,005 │ 2,000 │            │",
        "│ t      │           11 │        7 │     ? │     ? │ it is gone │",
        "│ total  │ 2 partitions │          │       │ 2,000 │            │",
        "└────────┴──────────────┴──────────┴───────┴───────┴────────────┘",
        "t: more",
    ]
    assert "note" not in str(kafka_lag.LagReport("group", "g", "x:1", lag.Lag((good,))))


def test_it_runs_as_a_module():
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "forebay", "--version"], check=True, capture_output=True, text=True
    )
    assert ran.stdout == f"forebay {__version__}\n"
