# SPDX-License-Identifier: Apache-2.0
"""`check(source)`: the conformance kit in one line, for a source as it stands."""

from __future__ import annotations

import time
import warnings
from collections.abc import Collection

from forebay.errors import ConfigurationError, DataError, DataLossError, RetriableError
from forebay.framework.inprocess.arguments import require_source
from forebay.framework.source import Source
from forebay.testkit.checks import ALL, READ, Check
from forebay.testkit.leaks import unclosed
from forebay.testkit.outcomes import Broken, ConformanceError, NotProvenWarning, OutOfTime, Report, Result
from forebay.testkit.subject import Subject
from forebay.testkit.watch import guarded


def check(source: Source, *, seconds: float = 30.0, seed: int = 0, rules: Collection[str] | None = None) -> Report:
    """Run every generic check against a source as it stands, and say what each came to.

    Called by authors, in a test or at a prompt: ``print(testkit.check(Orders(url=…)))``. The source is discovered and
    read many times over, up to what is there now; of an input of more than 64 splits or 10,000 rows only a sample.
    Nothing is done to the input: `finished` and `committed` of its enumerator are not called.

    Args:
        source: What to check; unbounded ones are read until they are caught up.
        seconds: The time for everything; what has not run by then is skipped. A sixth of it, at least one second, is
            how long one silence may last before it counts as a hang: give more to a slow source.
        seed: Chooses positions and moments. Another seed, other ones; the same seed, the same.
        rules: Run only the checks of these rules, such as those that failed before, and the plain read.

    Returns:
        The report, whose `verdict` is "passed" or "not proven"; printed, the verdict with what to do next, and a table
        of rules with what did not run and why. "Not proven" is a `NotProvenWarning` too: no check failed, and one that
        this source needs could not run.

    Raises:
        ConformanceError: A rule is broken; the first line says which, what was seen and what to do.
        ConfigurationError: It is no source, it has no splits to check with, or it cannot be reached as it is
            configured; so too the other errors of what is outside, `RetriableError`, `DataError` and `DataLossError`.
    """
    require_source(source, "check()")
    started = time.monotonic()
    subject = Subject(source, seconds=seconds, seed=seed, live=True)
    chosen = [each for each in ALL if rules is None or each.rule in rules or each is READ]
    with unclosed():  # a check of its own counts them
        try:
            hanging = _reach(subject)
            results = [hanging] if hanging is not None else [_judged(each, subject) for each in chosen]
        finally:
            subject.close()
    report = Report(source.name, results, seed, time.monotonic() - started, subject.read)
    if report.failed:
        raise ConformanceError(report)
    if report.skipped:
        warnings.warn(report.headline, NotProvenWarning, stacklevel=2)
    return report


def _judged(each: Check, subject: Subject) -> Result:
    if each is READ:
        return each.judge(subject, least=2 * subject.patience)
    if subject.time_left():
        return each.judge(subject)
    over = OutOfTime()
    return Result(each.rule, each.text, "skipped", str(over), over.advice)


def _reach(subject: Subject) -> Result | None:
    """Look at the source once, so that a wrong address is told as that, not as a broken rule.

    Returns:
        The failure of a source that does not come back: every check would wait for it again. Else None.
    """

    def look() -> None:
        subject.schema()
        if not subject.discover():
            raise ConfigurationError(
                "splits() found nothing", source=subject.source.name, advice="give check() a source with data"
            )

    try:
        guarded(look, 2 * subject.patience, max(subject.deadline, time.monotonic() + 4 * subject.patience))
    except (ConfigurationError, RetriableError, DataError, DataLossError):
        raise
    except Broken as broken:
        if broken.hangs:
            return Result(broken.rule or "ENU-6", "the source answers", "failed", broken.saw, broken.advice)
    except Exception:  # noqa: BLE001 - the checks that follow meet it again, and name the rule
        return None
    return None
