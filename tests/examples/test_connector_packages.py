# SPDX-License-Identifier: Apache-2.0
"""The packages of connectors: what they declare exists, and they use the public API alone."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import forebay
from forebay.options.spec import class_options

CONNECTORS = Path(__file__).parents[2] / "examples" / "connectors"
PACKAGES = sorted(path.parent for path in CONNECTORS.glob("*/pyproject.toml"))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_its_formats_are_its_sources(package):
    declared = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    formats = declared["entry-points"]["forebay.sources"]
    page = (package / declared["readme"]).read_text()
    for name, target in formats.items():
        module, _, cls = target.partition(":")
        source = getattr(importlib.import_module(module), cls)
        assert issubclass(source, forebay.Source)
        assert source.name == name
        assert f"`{name}`" in page or f'"{name}"' in page
        assert [one.name for one in class_options(source) if f"`{one.name}`" not in page] == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_it_uses_the_public_api_alone(package):
    for file in package.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("forebay"):
                assert node.module == "forebay"
                assert all(hasattr(forebay, name.name) for name in node.names)
            elif isinstance(node, ast.Import):
                assert all(name.name == "forebay" or not name.name.startswith("forebay") for name in node.names)


@pytest.mark.soak
def test_what_is_installed_is_listed_with_its_options_and_runs(tmp_path):
    """Each package is built and installed as any other, beside forebay."""
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", tmp_path / "wheels"]
    subprocess.run([*build, *PACKAGES], check=True)
    wheels = sorted((tmp_path / "wheels").glob("*.whl"))
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", tmp_path / "site", *wheels], check=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    command = [Path(sys.executable).parent / "forebay", "sources", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path)
    found = {one["name"]: one for one in json.loads(done.stdout)}
    assert {"rest_feed", "postgres_table", "postgres_changes", "redis_streams"} <= found.keys()
    assert "pageRows" in {option["name"] for option in found["redis_streams"]["options"]}
