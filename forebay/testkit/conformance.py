# SPDX-License-Identifier: Apache-2.0
"""`check(source)`: runs the conformance checks on a source and its present input."""

from __future__ import annotations

import inspect
import os
import sys
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from forebay.errors import ConfigurationError, DataError, DataLossError, RetriableError
from forebay.framework.inprocess.running import require_source
from forebay.framework.source import Source
from forebay.testkit.checks import ALL, READ
from forebay.testkit.checks.base import Check
from forebay.testkit.checks.faults import FAULTS, unclosed
from forebay.testkit.checks.readers import REPEATED
from forebay.testkit.harness.calls import run_guarded
from forebay.testkit.harness.subject import Subject
from forebay.testkit.harness.surroundings import CHILD
from forebay.testkit.outcomes import Broken, ConformanceError, ConformanceWarning, NotProvenWarning, Report, Result


def check(
    source: Source,
    *,
    seconds: float = 30.0,
    seed: int = 0,
    rules: Collection[str] | None = None,
    stored: Sequence[Mapping[str, Any]] = (),
) -> Report:
    """Run every conformance check that needs only a source and its present input.

    Use it in a test or at a prompt: ``print(testkit.check(Orders(url=…)))``. The checks discover and read the source
    many times, up to its present end. Most checks read at most 4 splits, and the first 120 rows or more of each. Of an
    input of more than 64 splits or 10,000 rows, no check reads more than that sample. The checks do not change the
    input: they never call `finished` and `committed` of a `DiscoveryEnumerator`. Of a source that `consumes` its input,
    they take the records; a `ConformanceWarning` says so before the first call.

    Args:
        source: The source. An unbounded source is read until it is caught up.
        seconds: Maximum seconds for all checks. A check that has not run by then is skipped. A source that returns
            nothing for a sixth of this time (at least one second) counts as hanging: pass more seconds for a slow one.
        seed: Seeds the random positions and steps at which checks interrupt a read. The same seed repeats them.
        rules: The ids of the rules to check, such as those that failed before; None for all. The plain read, with which
            the checks compare, always runs.
        stored: Splits that older versions of the connector stored, as the dicts that `Split.to_json` returned. Needed
            for a verdict "passed" if the version of the split class is above 1.

    Returns:
        The report, whose `verdict` is "passed" or "not proven". When printed, the report shows the verdict with the
        next step, and a table of the checks with the reason of each check that did not run. "Not proven" means that no
        check failed, but a check that this source needs could not run; `check` also issues a `NotProvenWarning`. Other
        warnings are a `ConformanceWarning`.

    Raises:
        ConformanceError: A rule is broken. The first line has the rule, what happened, and the next step.
        ConfigurationError: The argument is not a source, has no splits to check, or has a wrong configuration.
        RetriableError, DataError, DataLossError: The first call of `schema` or discovery raised this error.
    """
    require_source(source, "check()")
    _refuse_import(source)
    if source.consumes:
        what = (
            "check() reads it many times, and takes its records: use a queue of its own for tests. Whether a failure "
            "while it takes them loses some, only a SourceContract finds"
        )
        warnings.warn(f"{source.name} consumes its input: {what}", ConformanceWarning, stacklevel=2)
    started = time.monotonic()
    subject = Subject(source, seconds=seconds, seed=seed, live=True, stored=stored)
    chosen = [each for each in ALL if rules is None or not set(rules).isdisjoint(each.rules) or each is READ]
    with unclosed():  # the checks of leaks count these warnings
        try:
            hanging = _discover_first(subject)
            results = [hanging] if hanging is not None else _judge(subject, chosen)
        finally:
            subject.close()
    report = Report(source.name, results, seed, time.monotonic() - started, str(subject.plain or ""))
    if report.failed:
        raise ConformanceError(report)
    if report.skipped or report.warned:
        kind = NotProvenWarning if report.skipped else ConformanceWarning
        warnings.warn(report.headline, kind, stacklevel=2)
    return report


def _judge(subject: Subject, checks: Sequence[Check]) -> list[Result]:
    """Run the checks in order. After the first that failed, read again without disturbance, as `REPEATED` did.

    If the rows are others by then, the input or the source has changed, and this is the cause of the failure. Not after
    a check of `FAULTS`, which may leave a client broken.
    """
    results: list[Result] = []
    for each in checks:
        results.append(each.judge(subject))
        first = [result for result in results if result.outcome == "failed"] == results[-1:]
        before = checks.index(REPEATED) if REPEATED in checks else len(results)
        if first and each not in FAULTS and before < len(results) and results[before].outcome == "passed":
            again = REPEATED.judge(subject)
            if again.outcome == "failed" and again.rule == REPEATED.rule:
                results[before] = replace(again, why=f"later, after {each.rule}: {again.why}")
    return results


def _refuse_import(source: Source) -> None:
    """Refuse a call while the module of the source is imported: threads that pickle its class wait for the import."""
    name, frame = type(source).__module__, inspect.currentframe()
    module = vars(sys.modules[name]) if name in sys.modules else None
    while frame is not None and (frame.f_code.co_name != "<module>" or frame.f_globals is not module):
        frame = frame.f_back
    if os.environ.get(CHILD) or (frame is not None and name != "__main__"):
        raise ConfigurationError(
            f"check() is called while the module {name} is imported",
            source=source.name,
            advice="call it in a test, or below `if __name__ == '__main__':`",
        )


def _discover_first(subject: Subject) -> Result | None:
    """Discover the source once, so that a wrong configuration raises its own error, not a broken rule.

    Returns:
        The failed result if the source hangs, because every check would hang again; else None.
    """

    def discover() -> None:
        subject.schema  # noqa: B018 - calls the source
        if not subject.discover():
            raise ConfigurationError(
                "the source has no split: discovery returned an empty list",
                source=subject.source.name,
                advice="call check() with a source that has data",
            )

    try:
        run_guarded(discover, 2 * subject.patience, max(subject.deadline, time.monotonic() + 4 * subject.patience))
    except (ConfigurationError, RetriableError, DataError, DataLossError):
        raise
    except Broken as broken:
        if broken.hangs:
            return Result(broken.rule or "ENU-6", "the source answers", broken.outcome, broken.saw, broken.advice)
    except Exception:  # noqa: BLE001 - a later check fails with the same error, and names the rule
        return None
    return None
