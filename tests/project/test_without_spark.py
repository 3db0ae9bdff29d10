# SPDX-License-Identifier: Apache-2.0
"""`peek` and `run` need neither pyspark nor Java, nor anything else but pyarrow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

import forebay

ROOT = Path(__file__).parents[2]

PROGRAM = """
import forebay, pyarrow as pa, tempfile

class Countdown(forebay.SimpleSource):
    start: int = 10
    def schema(self): return pa.schema({"n": pa.int64()})
    def read(self, split):
        for i in range(split.position or 0, self.start): yield {"n": self.start - i}

assert forebay.peek(Countdown(start=3)).table.column("n").to_pylist() == [3, 2, 1]
with tempfile.TemporaryDirectory() as directory:
    table = forebay.run(Countdown(start=3), checkpoint=directory).to_table()
assert table.column("n").to_pylist() == [3, 2, 1]

with tempfile.TemporaryDirectory() as directory:
    with open(f"{directory}/a.json", "w") as file:
        file.write('{"n": 1}\\n{"n": 2}\\n')
    source = forebay.FileSource(path=f"{directory}/a.json", file_format="json")
    assert forebay.peek(source).table.column("n").to_pylist() == [1, 2]
print("read")
"""

# Refuses every installed package but pyarrow and forebay, as a machine does where only those are installed.
BLOCKER = """
import sys
from importlib.machinery import PathFinder

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if path is not None or name in {"forebay", "pyarrow"} or name.startswith("pyspark_forebay_"):
            return None
        spec = PathFinder.find_spec(name)
        places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
        if any("site-packages" in str(place) for place in places):
            raise ModuleNotFoundError(f"No module named {name!r} (refused by the test)", name=name)
        return None

sys.meta_path.insert(0, Blocker())
"""


def environment(path: str) -> dict[str, str]:
    """An environment without Java and without Spark's variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "SPARK", "PYSPARK"))}
    return kept | {"PATH": path}


def test_peek_and_run_need_pyarrow_alone(tmp_path):
    command = [sys.executable, "-P", "-c", BLOCKER + PROGRAM]
    env = environment(str(tmp_path))
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "read\n", done.stderr


@pytest.mark.parametrize("name", ["pyspark", "numpy", "fsspec"])
def test_the_blocker_refuses(name):
    command = [sys.executable, "-P", "-c", f"{BLOCKER}\nimport {name}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "refused by the test" in done.stderr


@pytest.mark.parametrize("module", sorted(path.stem for path in ROOT.glob("pyspark_forebay_*.py")))
def test_discovery_modules_cannot_raise(module):
    """Spark imports every installed module called pyspark_…, whatever they need is missing."""
    # Last on the path, for where the package is installed without the modules beside it.
    program = f"{BLOCKER}\nsys.path.append({str(ROOT)!r})\nimport {module}, forebay\nprint(forebay.__file__)"
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == forebay.__file__, done.stderr


DOORS = """
import importlib
from forebay.errors import ConfigurationError

for door in ("forebay", "forebay.changelog", "forebay.index", "forebay.keys"):
    module = importlib.import_module(door)
    for name in module.__all__:
        try:
            getattr(module, name)
        except ConfigurationError as error:
            print(f"{door}.{name}", error.advice, sep="\\t")
"""


def packages_of(extra):
    """The names of the packages of an extra."""
    texts = [text for text in requires("forebay") or () if re.search(f"extra == .{extra}.$", text)]
    return {re.split("[^A-Za-z0-9-]", text)[0] for text in texts}


@pytest.mark.parametrize(("missing", "needy"), [("numpy", "forebay.index.Funnel"), ("pyspark", "forebay.keys.")])
def test_a_name_that_needs_a_package_says_which_extra_has_it(missing, needy):
    command = [sys.executable, "-P", "-c", f"import sys\nsys.modules[{missing!r}] = None\n{DOORS}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert needy in done.stdout
    for line in done.stdout.splitlines():
        name, advice = line.split("\t")
        extras = re.fullmatch(r'pip install "forebay\[(.+)\]"', advice)
        assert extras, line
        assert missing in set().union(*map(packages_of, extras[1].split(","))), name


def test_the_extra_of_opensearch_is_all_that_its_names_need():
    allowed = ", ".join(map(repr, {"forebay", "pyarrow", *packages_of("opensearch")}))
    blocker = BLOCKER.replace('"forebay", "pyarrow"', allowed)
    program = f"{blocker}\nfrom forebay.index import OpenSearchIndex, OpenSearchObjects"
    subprocess.run([sys.executable, "-P", "-c", program], check=True)


def normal(package):
    """The name of a package as PEP 503 has it."""
    return re.sub("[-_.]+", "-", package).lower()


def with_dependencies(packages):
    """The packages, and those that they need; markers leave some out."""
    known, waiting = set(), set(packages)
    while waiting:
        package = waiting.pop()
        known.add(package)
        with suppress(PackageNotFoundError):
            texts = [text for text in requires(package) or () if "extra ==" not in text]
            waiting |= {normal(re.split("[^A-Za-z0-9_.-]", text)[0]) for text in texts} - known
    return known


@pytest.mark.soak(but=["arguments2"])
@pytest.mark.parametrize("arguments", [["--help"], ["index", "gc", "--help"], ["sources"]])
def test_the_extra_of_the_command_line_is_all_that_it_needs(tmp_path, arguments):
    packages = with_dependencies(packages_of("cli"))
    modules = {module for module, names in packages_distributions().items() if packages & {*map(normal, names)}}
    blocker = BLOCKER.replace('"forebay", "pyarrow"', ", ".join(map(repr, {"forebay", "pyarrow", *modules})))
    program = f"{blocker}\nfrom forebay.cli import main\nsys.exit(main({arguments!r}))"
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode == 0
    assert "typer" in modules and "pyspark" not in modules


@pytest.mark.soak
def test_peek_and_run_in_a_fresh_environment(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    installed = subprocess.run([python, "-m", "pip", "list"], capture_output=True, text=True, check=True).stdout
    assert "pyspark" not in installed
    (tmp_path / "empty").mkdir()
    env = environment(str(tmp_path / "empty"))
    command = [python, "-P", "-c", PROGRAM]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "read\n", done.stderr
