# SPDX-License-Identifier: Apache-2.0
"""The wheel holds the package, all of it, and nothing else; its metadata says what the design says."""

from __future__ import annotations

import email
import email.message
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import forebay.version

CORE = {"pyarrow"}
EXTRAS = {"spark", "files", "kafka", "kafka-tls", "s3", "avro", "changelog", "cli", "metrics", "opensearch", "postgres"}


@pytest.fixture(scope="module")
def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def metadata(contents: dict[str, bytes]) -> email.message.Message:
    [name] = [name for name in contents if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(contents[name])


def requirements(metadata: email.message.Message, extra: str | None) -> list[str]:
    """The requirements of an extra, or those that hold without any."""
    lines = [str(line) for line in metadata.get_all("Requires-Dist", [])]
    wanted = [line for line in lines if (f"extra == '{extra}'" in line if extra else "extra ==" not in line)]
    return [line.split(";")[0].strip() for line in wanted]


def test_every_file_of_the_package_is_in_it_as_it_is_now(contents, root):
    kinds = {".py", ".tmpl"}
    shipped = [path for path in (root / "forebay").rglob("*") if path.suffix in kinds or path.name == "py.typed"]
    shipped += root.glob("pyspark_forebay_*.py")
    assert {str(path.relative_to(root)): path.read_bytes() for path in shipped} == {
        name: data for name, data in contents.items() if ".dist-info/" not in name
    }


def test_it_tells_type_checkers_that_it_is_typed(contents):
    assert "forebay/py.typed" in contents


def test_it_carries_the_licence(contents, root):
    [name] = [name for name in contents if name.endswith("/LICENSE")]
    assert contents[name] == (root / "LICENSE").read_bytes()


def test_it_shows_the_readme(metadata, root):
    assert metadata.get_payload(decode=True) == (root / "README.md").read_bytes()


def test_the_version_is_written_once(metadata, root):
    assert metadata["Version"] == forebay.version.__version__
    written = re.compile(r"\b" + re.escape(forebay.version.__version__) + r"\b")
    again = [path for path in (root / "forebay").rglob("*.py") if written.search(path.read_text(encoding="utf-8"))]
    assert [path.name for path in again] == ["version.py"]
    assert not written.search((root / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_core_needs_pyarrow_alone(metadata):
    assert {re.split(r"[<>=!~ ]", line)[0] for line in requirements(metadata, None)} == CORE
    assert metadata["Requires-Python"] == ">=3.11"


def test_the_extra_all_is_all_the_others(metadata):
    assert set(metadata.get_all("Provides-Extra", [])) == EXTRAS | {"all", "dev"}
    assert set(requirements(metadata, "all")) == {line for extra in EXTRAS for line in requirements(metadata, extra)}


def test_entry_points_lead_to_sources_and_commands(contents, root):
    [name] = [name for name in contents if name.endswith(".dist-info/entry_points.txt")]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for format_name, value in project["entry-points"]["forebay.sources"].items():
        assert f"{format_name} = {value}" in contents[name].decode()
        assert isinstance(importlib.metadata.EntryPoint(format_name, value, "forebay.sources").load(), type)
    for command, value in project["scripts"].items():
        assert f"{command} = {value}" in contents[name].decode()
        assert callable(importlib.metadata.EntryPoint(command, value, "console_scripts").load())


@pytest.mark.soak
def test_make_dist_builds_the_same_wheel_and_sdist_each_time(root):
    done = subprocess.run(["make", "dist"], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(line.rpartition(".")[2] for line in done.stdout.splitlines()) == ["gz", "whl"]


def test_the_installed_package_is_the_wheel(contents):
    place = Path(str(forebay.__file__)).parent.parent
    differing = [
        name for name, data in contents.items() if ".dist-info/" not in name and (place / name).read_bytes() != data
    ]
    assert differing == []


def test_processes_started_in_the_checkout_import_the_wheel(root):
    """Spark starts its Python workers in the current directory, which is the checkout, with this environment."""
    command = [os.environ["PYSPARK_PYTHON"], "-c", "import forebay; print(forebay.__file__)"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == forebay.__file__


def test_the_wheel_reads_in_an_empty_directory(wheel, tmp_path):
    """Installed alone, away from the checkout, with this interpreter's pyarrow."""
    install = ["install", "--quiet", "--no-index", "--no-deps", "--target", str(tmp_path / "lib"), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    (tmp_path / "empty").mkdir()
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import forebay
assert forebay.__file__.startswith(sys.argv[1]), forebay.__file__
import pyarrow as pa

class Countdown(forebay.SimpleSource):
    start: int = 10
    def schema(self): return pa.schema({"n": pa.int64()})
    def read(self, split):
        for i in range(split.position or 0, self.start): yield {"n": self.start - i}

print(forebay.run(Countdown(start=3)).to_table().to_pydict())
"""
    command = [sys.executable, "-P", "-c", program, str(tmp_path / "lib")]
    done = subprocess.run(command, cwd=tmp_path / "empty", capture_output=True, text=True, check=False)
    assert done.stdout == "{'n': [3, 2, 1]}\n", done.stderr
