# SPDX-License-Identifier: Apache-2.0
"""`forebay sources`, `forebay doctor`, `forebay verify`: what is installed, and whether it works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Annotated, Literal

import typer

from forebay.cli.arguments import Json, Options, Target, option_texts, say, target_source
from forebay.framework.runtime.connector_errors import connector_error
from forebay.inspection.describe import installed_sources, peek, sources_table
from forebay.text_tables import text_table
from forebay.version import __version__

# -- Checks the environment: Python, Java, PySpark, the workers' interpreter, extras. A problem comes with its repair.

_OLDEST_JAVA = 17
_OLDEST_SPARK = (4, 2)
_NEXT_SPARK = (5,)
_TIMEOUT = 30.0
"""Maximum seconds for a program to report its version."""

State = Literal["ok", "missing", "wrong"]
"""`missing`: optional and not installed. `wrong`: Spark or forebay does not work with what was found."""


@dataclass(frozen=True)
class Diagnosis:
    """The result of one check.

    Args:
        check: What was checked.
        state: `ok`, `missing` or `wrong`; see `State`.
        found: What the check found, such as a version and a path.
        advice: The repair, mostly a command to type; empty if nothing is needed.
    """

    check: str
    state: State
    found: str
    advice: str = ""


def check_environment(environ: Mapping[str, str] | None = None) -> list[Diagnosis]:
    """Return the findings on this Python, Java, PySpark, the interpreter of Spark's workers, and forebay's extras.

    Args:
        environ: The environment variables; by default those of this process.
    """
    variables = os.environ if environ is None else environ
    return [_python(), _java(variables), _pyspark(), _workers(variables), *_extras()]


def _python() -> Diagnosis:
    version = ".".join(map(str, sys.version_info[:3]))
    text = f"{version} ({sys.executable}), forebay {__version__}"
    return Diagnosis("Python", "ok", text)


def _java(environ: Mapping[str, str]) -> Diagnosis:
    home = environ.get("JAVA_HOME")
    program = os.path.join(home, "bin", "java") if home else shutil.which("java", path=environ.get("PATH")) or "java"
    advice = (
        "install a JDK of version 17 or newer (Debian, Ubuntu: apt install openjdk-17-jre-headless), or set JAVA_HOME"
    )
    done = _output([program, "-version"], environ)
    if isinstance(done, str) and not _is_installed("pyspark"):
        return Diagnosis("Java", "missing", "not installed; only Spark needs it", advice)
    if isinstance(done, str):
        return Diagnosis("Java", "wrong", f"{program} does not run: {done}", advice)
    text = done.stderr + done.stdout
    version = re.search(r'version "(\d+)(?:\.(\d+))?[^"]*"', text)
    if done.returncode or version is None:
        return Diagnosis("Java", "wrong", f"{program} -version says: {text.strip()[:200]}", advice)
    major = int(version[2] if version[1] == "1" and version[2] else version[1])
    shown = f"{version[0].split()[1].strip(chr(34))} ({program})"
    return Diagnosis("Java", "ok", shown) if major >= _OLDEST_JAVA else Diagnosis("Java", "wrong", shown, advice)


def _pyspark() -> Diagnosis:
    advice = 'pip install "forebay[spark]"'
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return Diagnosis("PySpark", "missing", "not installed; forebay.run works without it", advice)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if not _OLDEST_SPARK <= numbers < _NEXT_SPARK:
        return Diagnosis(
            "PySpark", "wrong", f"{version}; forebay needs 4.2 or newer, before 5", 'pip install "pyspark>=4.2,<5"'
        )
    return Diagnosis("PySpark", "ok", version)


def _workers(environ: Mapping[str, str]) -> Diagnosis:
    """Check the interpreter that Spark's workers start on this machine."""
    name = environ.get("PYSPARK_PYTHON")
    program = shutil.which(name or "python3", path=environ.get("PATH"))
    label = f"PYSPARK_PYTHON={name}" if name else "PYSPARK_PYTHON is not set, so python3"
    advice = f"export PYSPARK_PYTHON={sys.executable}"
    if program is None:
        return Diagnosis("Spark's workers", "wrong", f"{label}: there is no such program", advice)
    code = "import sys, forebay; print(*sys.version_info[:2], forebay.__version__)"
    done = _output([program, "-c", code], environ)
    if isinstance(done, str) or done.returncode:
        reason = done if isinstance(done, str) else (done.stderr.strip().splitlines() or ["no output"])[-1]
        return Diagnosis("Spark's workers", "wrong", f"{label} ({program}) cannot import forebay: {reason}", advice)
    major, minor, version = done.stdout.split()
    if (int(major), int(minor)) != sys.version_info[:2] or version != __version__:
        workers = f"{label} ({program}) is Python {major}.{minor} with forebay {version}"
        return Diagnosis("Spark's workers", "wrong", f"{workers}, unlike this process", advice)
    return Diagnosis("Spark's workers", "ok", f"{label} ({program})")


def _extras() -> list[Diagnosis]:
    """Return one finding for each extra of forebay: its packages, or those of them that are not installed."""
    try:
        requires = metadata.requires("forebay") or []
    except metadata.PackageNotFoundError:
        return [Diagnosis("extras", "wrong", "forebay is not installed as a package", "pip install forebay")]
    extras: dict[str, list[str]] = {}
    for text in requires:
        needed = re.match(r"([A-Za-z0-9._-]+)[^;]*;.*extra\s*==\s*['\"]([^'\"]+)['\"]", text)
        if needed is not None and needed[1] != "forebay" and needed[2] not in ("all", "dev", "spark"):
            extras.setdefault(needed[2], []).append(needed[1])
    findings = []
    for extra, packages in extras.items():
        absent = [package for package in packages if not _is_installed(package)]
        if absent:
            advice = f'pip install "forebay[{extra}]"'
            findings.append(Diagnosis(f"extra {extra}", "missing", f"not installed: {', '.join(absent)}", advice))
        else:
            versions = ", ".join(f"{package} {metadata.version(package)}" for package in packages)
            findings.append(Diagnosis(f"extra {extra}", "ok", versions))
    return findings


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _output(command: list[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str] | str:
    """Run a program that reports a version. Return its result, or a text why the program does not run."""
    try:
        return subprocess.run(  # noqa: S603 - the user's own Java and Python, as Spark starts them
            command, capture_output=True, text=True, timeout=_TIMEOUT, check=False, env=dict(environ)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def check_source(name: str, read: Callable[[], object]) -> Diagnosis:
    """Call `read`, which reads the first row of a source. Return a finding with its result or with its error."""
    try:
        shown = str(read())
    except Exception as error:  # noqa: BLE001 - a connector may raise anything; the finding has it
        typed = connector_error(error, source=name, doing="reading")
        return Diagnosis(name, "wrong", typed.message, typed.advice or "")
    return Diagnosis(name, "ok", shown)


# -- `forebay sources`, `forebay doctor`, `forebay verify`: what is installed, and whether it works.


def sources(*, as_json: Json = False) -> None:
    """List the installed formats; with --json, also their options."""
    installed = installed_sources()
    say(json.dumps([source.to_json() for source in installed], indent=2) if as_json else sources_table(installed))


def doctor(
    name: Annotated[
        str | None, typer.Argument(help="A format or MODULE:Class to read with these options.", show_default=False)
    ] = None,
    option: Options = None,
    *,
    as_json: Json = False,
) -> None:
    """Check Python, Java, PySpark and the extras; with a format, also whether its service can be reached.

    The exit code is 1 if something is wrong.
    """
    diagnoses = check_environment()
    if name is not None:
        options = option_texts(option)
        diagnoses.append(check_source(name, lambda: _reached(name, options)))
    if as_json:
        say(json.dumps([asdict(diagnosis) for diagnosis in diagnoses], indent=2))
    else:
        say(_findings(diagnoses))
    if any(diagnosis.state == "wrong" for diagnosis in diagnoses):
        raise typer.Exit(1)


def _reached(name: str, options: dict[str, str]) -> str:
    peeked = peek(target_source(name, options), 1)
    return f"reached; columns: {', '.join(peeked.table.schema.names)}"


def _findings(diagnoses: list[Diagnosis]) -> str:
    rows = [(diagnosis.check, diagnosis.state, diagnosis.found) for diagnosis in diagnoses]
    table = text_table(("check", "state", "found"), rows, whole=(2,))
    wrong = [diagnosis for diagnosis in diagnoses if diagnosis.state == "wrong"]
    missing = [diagnosis for diagnosis in diagnoses if diagnosis.state == "missing"]
    steps = [f"{diagnosis.check}: next step: {diagnosis.advice}" for diagnosis in wrong]
    optional = [f"{diagnosis.check}: {diagnosis.advice}" for diagnosis in missing]
    return "\n".join([table, *steps, *(["optional:", *(f"  {line}" for line in optional)] if optional else [])])


def verify(
    target: Target,
    option: Options = None,
    *,
    seconds: Annotated[float, typer.Option(min=1, help="Maximum seconds for all checks.")] = 30.0,
    seed: Annotated[int, typer.Option(help="The seed of the positions where checks interrupt reads.")] = 0,
    rule: Annotated[list[str] | None, typer.Option(help="Check only this rule; may be repeated.")] = None,
    as_json: Json = False,
) -> None:
    """Run the conformance kit on a source. The exit code is 1 if it breaks a rule.

    The source is read many times, and not changed; a source that consumes its input, such as a queue, loses records.
    """
    from forebay.testkit import ConformanceError, check

    source = target_source(target, option_texts(option))
    if source.consumes:
        typer.echo(f"warning: {source.name} consumes its input: verify takes its records", err=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the report shows the warnings
        try:
            report = check(source, seconds=seconds, seed=seed, rules=rule)
        except ConformanceError as error:
            report = error.report
    if as_json:
        results = [asdict(result) for result in report.results]
        head = {"source": report.source, "verdict": report.verdict, "seed": report.seed}
        say(json.dumps({**head, "headline": report.headline, "checks": results}, indent=2))
    else:
        say(str(report))
    if report.failed:
        raise typer.Exit(1)
