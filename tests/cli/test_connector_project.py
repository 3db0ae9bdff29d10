# SPDX-License-Identifier: Apache-2.0
"""`forebay new` and `forebay verify`: a project that passes as it is, and a kit that finds what is broken in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from forebay.cli import main
from forebay.cli.scaffold import FILES


def run(directory: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONSAFEPATH", "PYTEST_ADDOPTS")}
    return subprocess.run(
        [Path(sys.executable).with_name(program), *arguments],
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "shop"
    assert main(["new", "shop_orders", "--directory", str(directory)]) == 0
    return directory


def test_a_new_project_passes_its_own_tests_and_its_lint(project):
    tested = run(project, "pytest", "-q", "-p", "no:cacheprovider")
    assert tested.returncode == 0, tested.stdout + tested.stderr
    for lint in (("check", "."), ("format", "--check", ".")):
        linted = run(project, "ruff", *lint)
        assert linted.returncode == 0, linted.stdout


@pytest.mark.soak
def test_peek_at_the_new_project_shows_lines_of_its_readme(project):
    """The next command of the guide after `pip install`: an empty table would look like a mistake."""
    shown = run(project, "forebay", "peek", "shop_orders.source:ShopOrdersSource", "-o", "directory=.")
    assert shown.returncode == 0 and "# shop-orders" in shown.stdout, shown.stdout + shown.stderr


def test_the_project_offers_its_source_to_spark(project):
    found = tomllib.loads((project / "pyproject.toml").read_text())
    assert found["project"]["entry-points"]["forebay.sources"] == {"shop_orders": "shop_orders.source:ShopOrdersSource"}
    assert found["project"]["dependencies"][0].startswith("forebay>=")
    assert "$" not in "".join((project / path).read_text() for path in ("README.md", "tests/test_source.py"))
    assert "${{ matrix.python }}" in (project / ".github/workflows/test.yml").read_text()


@pytest.mark.soak
def test_the_project_installs_although_no_index_has_this_forebay(project, tmp_path):
    """A project of a checkout brings the wheel, and its CI and README look there."""
    for file in (".github/workflows/test.yml", "README.md"):
        assert "pip install --find-links vendor -e '.[test]'" in (project / file).read_text()
    (needed,) = tomllib.loads((project / "pyproject.toml").read_text())["project"]["dependencies"]
    offline = ("--no-index", "--no-deps", "--find-links", "vendor", "--target", str(tmp_path / "site"))
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "install", *offline, needed]
    subprocess.run(command, cwd=project, env=environ, check=True)
    program = "import forebay, sys; print(forebay.__file__, forebay.__version__)"
    where = {**environ, "PYTHONPATH": str(tmp_path / "site")}
    shown = subprocess.run([sys.executable, "-P", "-c", program], env=where, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == [str(tmp_path / "site" / "forebay" / "__init__.py"), needed.partition(">=")[2]]


def test_a_name_that_is_refused_is_not_advised(project, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(project))
    assert main(["new", "shop_orders", "--directory", str(project.parent / "again")]) == 1
    assert "such as shop_orders_source" in " ".join(capsys.readouterr().err.split())


@pytest.mark.soak
def test_a_bug_in_the_source_fails_its_kit_test_and_names_the_rule(project):
    source = project / "shop_orders" / "source.py"
    text = source.read_text()
    assert "if number >= (split.position or 0):" in text
    source.write_text(text.replace("if number >= (split.position or 0):", "if number >= 0:"))
    tested = run(project, "pytest", "-q", "-p", "no:cacheprovider", "-k", "lost_or_doubled")
    assert tested.returncode == 1 and "shop_orders breaks " in tested.stdout


@pytest.mark.soak
def test_verify_finds_a_class_in_the_current_directory(project, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.md").write_text("one\ntwo\n")
    target = ("forebay", "verify", "shop_orders.source:ShopOrdersSource", "-o", f"directory={data}")
    passed = run(project, *target, "--json")
    assert passed.returncode == 0, passed.stdout + passed.stderr
    report = json.loads(passed.stdout)
    assert report["verdict"] == "passed" and {one["outcome"] for one in report["checks"]} <= {"passed", "n/a"}
    source = project / "shop_orders" / "source.py"
    source.write_text(source.read_text().replace("(split.position or 0)", "0"))
    failed = run(project, "forebay", "check", *target[2:], "--seed", "7")
    assert failed.returncode == 1 and "shop_orders breaks " in failed.stdout and "seed 7" in failed.stdout


@pytest.mark.parametrize("target", ["no_such_module:Orders", "forebay.options:option", "forebay:NoSuch"])
def test_verify_names_what_cannot_be_imported(capsys, target):
    assert main(["verify", target]) == 1
    assert target in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "name",
    [
        *("Orders", "1st", "class", "shop-orders", "forebay_orders", "tests", "../x"),
        *("shop_", "a" * 41, "a" * 300),
        *("vendor", "dist"),  # the directories of the project that are no packages
    ],
)
def test_names_that_cannot_be_packages_are_refused(capsys, tmp_path, name):
    assert main(["new", name, "--directory", str(tmp_path / "p")]) == 1
    assert "cannot be the name of a connector" in capsys.readouterr().err and not (tmp_path / "p").exists()


def test_the_advice_is_not_what_was_refused(capsys, tmp_path, monkeypatch):
    for name in ("shop_orders", "shop_orders_source"):
        (tmp_path / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["new", "shop_orders", "--directory", str(tmp_path / "p")]) == 1
    assert "choose another name, such as shop_orders_source1" in " ".join(capsys.readouterr().err.split())
    assert main(["new", "shop_orders_source1", "--directory", str(tmp_path / "p")]) == 0


@pytest.mark.parametrize("name", ["json", "pyarrow"])
def test_names_that_would_hide_a_package_are_refused(capsys, tmp_path, name):
    assert main(["new", name, "--directory", str(tmp_path / "p")]) == 1
    assert "a module that Python can already import" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", ["none", "path", "iterator"])
def test_names_of_python_that_a_class_may_have_do_no_harm(capsys, tmp_path, name):
    assert main(["new", name, "--directory", str(tmp_path), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert len(files) == len(FILES) + 1  # and the wheel of forebay
    text = (tmp_path / name / "source.py").read_text()
    assert f"class {name.capitalize()}Source(forebay.SimpleSource):" in text
    compile(text, name, "exec")


@pytest.mark.soak(but=["raise RuntimeError('no')"])
@pytest.mark.parametrize(
    "text", ["raise RuntimeError('no')", "import forebay\nclass Orders(forebay.Source):\n    pass"]
)
def test_verify_reports_a_module_or_class_that_cannot_be_used(project, text):
    (project / "broken.py").write_text(text.replace("\\n", "\n"))
    done = run(project, "forebay", "verify", "broken:Orders")
    assert done.returncode == 1 and done.stderr.startswith("forebay: ") and "Traceback" not in done.stderr


def test_nothing_is_overwritten(capsys, tmp_path):
    (tmp_path / "README.md").write_text("mine")
    assert main(["new", "orders", "--directory", str(tmp_path)]) == 1
    assert "exists, so nothing is written" in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"] and (
        tmp_path / "README.md"
    ).read_text() == "mine"


@pytest.mark.parametrize("directory", ["afile", "afile/deep", "/proc/x", "long" * 80])
def test_a_directory_that_cannot_be_written_is_named_and_nothing_stays(capsys, tmp_path, monkeypatch, directory):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "afile").write_text("mine")
    assert main(["new", "orders", "--directory", directory]) == 1
    told = capsys.readouterr().err
    assert "cannot be written" in told and directory in told and "next step" in told
    assert [path.name for path in tmp_path.iterdir()] == ["afile"] and (tmp_path / "afile").read_text() == "mine"


def test_a_write_that_fails_midway_leaves_nothing(capsys, tmp_path):
    (tmp_path / "tests").write_text("a file, where the project has a directory")
    assert main(["new", "orders", "--directory", str(tmp_path)]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["tests"]


@pytest.mark.parametrize("link", ["README.md", "tests", "vendor"])
def test_nothing_is_written_through_a_link(capsys, tmp_path, link):
    outside = tmp_path / "outside"
    if link != "README.md":  # a link to a file that does not exist, or to a directory that does
        outside.mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / link).symlink_to(outside)
    assert main(["new", "orders", "--directory", str(tmp_path / "project")]) == 1
    assert "exists, so nothing is written" in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in (tmp_path / "project").iterdir()] == [link]
    assert not outside.exists() or not [*outside.iterdir()]


def test_the_wheel_of_forebay_is_not_overwritten_either(capsys, project):
    (wheel,) = (project / "vendor").iterdir()
    wheel.write_bytes(b"mine")
    again = project.with_name("again")
    (again / "vendor").mkdir(parents=True)
    wheel.rename(again / "vendor" / wheel.name)
    assert main(["new", "shop_orders", "--directory", str(again)]) == 1
    assert f"{wheel.name} exists" in capsys.readouterr().err
    assert (again / "vendor" / wheel.name).read_bytes() == b"mine" and [*again.iterdir()] == [again / "vendor"]


def test_the_lint_of_a_project_passes_with_the_longest_name_too(tmp_path):
    assert main(["new", "a" * 40, "--directory", str(tmp_path)]) == 0
    for lint in (("check", "."), ("format", "--check", ".")):
        linted = run(tmp_path, "ruff", *lint)
        assert linted.returncode == 0, linted.stdout


def test_every_template_is_in_the_wheel():
    from importlib import resources

    names = {one.name for one in (resources.files("forebay.cli") / "template").iterdir()}
    assert set(FILES.values()) == names - {"__init__.py"}
