# SPDX-License-Identifier: Apache-2.0
"""`forebay sources` and `forebay doctor`: what is installed, what is wrong, and what to type."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from forebay.cli import main, sources
from forebay.cli.sources import check_environment
from forebay.registry import default_registry


def finding(check: str, **changed: str):
    """Return the finding of one check, with changed environment variables; the others find no program to start."""
    absent = {"JAVA_HOME": "/nowhere", "PYSPARK_PYTHON": "no-such-python"}
    absent.pop({"Java": "JAVA_HOME", "Spark's workers": "PYSPARK_PYTHON"}.get(check, ""), None)
    (found,) = [one for one in check_environment({**os.environ, **absent, **changed}) if one.check == check]
    return found


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_sources_lists_the_formats(capsys):
    assert main(["sources"]) == 0
    shown = capsys.readouterr().out
    assert "forebay_files" in shown and "forebay_hybrid" in shown and "built into forebay" in shown


def test_sources_as_json_has_the_options(capsys):
    assert main(["sources", "--json"]) == 0
    (rate,) = [one for one in json.loads(capsys.readouterr().out) if one["name"] == "forebay_rate"]
    assert rate["class"] == "forebay.sources.rate:RateSource" and rate["problem"] is None
    meaning = "number of splits; each generates `rowsPerSecond` rows per second"
    assert {"name": "numSplits", "type": "int", "default": "1", "meaning": meaning} in rate["options"]


def test_a_package_that_cannot_be_loaded_is_listed_with_its_problem(capsys, monkeypatch):
    class Broken:
        name = "broken_orders"

    monkeypatch.setattr(default_registry, "_registered", [])
    default_registry.register_class(Broken)
    assert main(["sources"]) == 0
    shown = capsys.readouterr().out
    assert "broken_orders" in shown and "cannot be loaded" in shown and "derive it from forebay.Source" in shown


def test_doctor_finds_nothing_wrong_here(capsys):
    """The tests run with Java, PySpark, all extras and PYSPARK_PYTHON."""
    assert main(["doctor"]) == 0, capsys.readouterr().out
    shown = capsys.readouterr().out
    assert "wrong" not in shown and "extra kafka" in shown


def test_doctor_as_json(capsys):
    assert main(["doctor", "--json"]) == 0
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["Python"]["state"] == "ok" and {"Java", "PySpark", "Spark's workers", "extra s3"} <= found.keys()


@pytest.mark.parametrize(
    ("changed", "check", "found", "advice"),
    [
        ({"JAVA_HOME": "/nowhere"}, "Java", "/nowhere/bin/java does not run", "apt install openjdk"),
        ({"PYSPARK_PYTHON": "no-such-python"}, "Spark's workers", "there is no such program", sys.executable),
        ({"PYSPARK_PYTHON": "/bin/false"}, "Spark's workers", "cannot import forebay", sys.executable),
    ],
)
def test_doctor_names_what_is_wrong_and_what_to_type(changed, check, found, advice):
    said = finding(check, **changed)
    assert said.state == "wrong" and found in said.found and advice in said.advice


@pytest.mark.parametrize(
    ("version", "state"), [("1.8.0_392", "wrong"), ("11.0.2", "wrong"), ("17.0.9", "ok"), ("25", "ok")]
)
def test_the_version_of_java_is_read(tmp_path, version, state):
    program(tmp_path / "bin" / "java", f"echo 'openjdk version \"{version}\" 2024-01-16' >&2")
    said = finding("Java", JAVA_HOME=str(tmp_path))
    assert said.state == state and version in said.found


def test_workers_with_another_forebay_are_wrong(tmp_path):
    other = program(tmp_path / "python", f"echo {sys.version_info[0]} {sys.version_info[1]} 0.0.1")
    assert "with forebay 0.0.1, unlike this process" in finding("Spark's workers", PYSPARK_PYTHON=str(other)).found


def test_a_missing_extra_is_optional(monkeypatch):
    def version(name: str) -> str:
        if name == "boto3":
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(metadata, "version", version)
    said = finding("extra s3")
    assert (said.state, said.found, said.advice) == ("missing", "not installed: boto3", 'pip install "forebay[s3]"')


@pytest.fixture
def healthy(monkeypatch):
    """The environment is taken for granted: Java and Python need not be started to see what is said of a source."""
    monkeypatch.setattr(sources, "check_environment", list)


def test_doctor_reaches_a_source(capsys, healthy):
    assert main(["doctor", "forebay_rate", "-o", "rows=1"]) == 0
    assert "reached; columns: timestamp, value, split" in capsys.readouterr().out


def test_doctor_says_why_a_source_cannot_be_reached(capsys, healthy):
    assert main(["doctor", "forebay_files", "-o", "path=/no/such/place", "-o", "fileFormat=text"]) == 1
    assert "/no/such/place" in capsys.readouterr().out


def test_a_connector_that_raises_anything_is_a_finding(capsys, monkeypatch, healthy):
    def refuse(source, rows):
        raise OSError("no route to the service")

    monkeypatch.setattr(sources, "peek", refuse)
    assert main(["doctor", "forebay_rate", "--json"]) == 1
    last = json.loads(capsys.readouterr().out)[-1]
    assert last["state"] == "wrong" and "no route to the service" in last["found"]


def test_what_is_wrong_is_shown_whole_and_once(capsys, monkeypatch, healthy):
    words = "no route to " + "x" * 300

    def refuse(source, rows):
        raise OSError(words)

    monkeypatch.setattr(sources, "peek", refuse)
    assert main(["doctor", "forebay_rate"]) == 1
    shown = capsys.readouterr().out
    assert shown.count(words) == 1 and "…" not in shown
    assert "forebay_rate: next step:" in shown


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # kafka-python, when it is imported
def test_a_broker_that_cannot_be_reached_is_named(capsys, healthy):
    options = ["subscribe=t", "kafka.bootstrap.servers=127.0.0.1:1", "fetchOffset.numRetries=0"]
    options += ["kafka.default.api.timeout.ms=500"]
    assert main(["doctor", "forebay_kafka", *(part for one in options for part in ("-o", one))]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().out


def test_java_is_optional_without_spark(monkeypatch):
    monkeypatch.setattr(sources, "_is_installed", lambda package: False)
    assert finding("Java", JAVA_HOME="/nowhere").state == "missing"


@pytest.mark.parametrize(
    ("version", "state"), [("4.1.9", "wrong"), ("4.2.0", "ok"), ("4.3.1", "ok"), ("5.0.0", "wrong")]
)
def test_the_version_of_pyspark_is_checked(monkeypatch, version, state):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    assert finding("PySpark").state == state


def test_java_that_hangs_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(sources, "_TIMEOUT", 0.2)
    program(tmp_path / "bin" / "java", "exec sleep 60")
    assert "timed out" in finding("Java", JAVA_HOME=str(tmp_path)).found


def test_doctor_runs_as_a_command():
    done = subprocess.run(
        [Path(sys.executable).with_name("forebay"), "doctor", "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and json.loads(done.stdout)
