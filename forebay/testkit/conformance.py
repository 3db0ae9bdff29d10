# SPDX-License-Identifier: Apache-2.0
"""`check(source)`: the conformance kit in one line, for a source as it stands."""

from __future__ import annotations

import time
from collections.abc import Collection

from forebay.errors import ConfigurationError, DataError, DataLossError, RetriableError
from forebay.framework.inprocess.arguments import require_source
from forebay.framework.source import Source
from forebay.testkit.checks import ALL, READ, Check
from forebay.testkit.outcomes import Broken, ConformanceError, Report, Result
from forebay.testkit.subject import OVER, Subject
from forebay.testkit.watch import guarded


def check(source: Source, *, seconds: float = 30.0, seed: int = 0, rules: Collection[str] | None = None) -> Report:
    """Run every generic check against a source as it stands, and say what each came to.

    Called by authors, in a test or at a prompt: ``print(testkit.check(Orders(url=…)))``. The source is discovered and
    read many times over, up to what is there now; of a large input only the first rows of some splits. Nothing is done
    to the input: `finished` and `committed` of its enumerator are not called.

    Args:
        source: What to check; unbounded ones are read until they are caught up.
        seconds: The time for everything. A sixth of it, at least one second, is how long one silence may last before it
            counts as a hang: give more to a slow source.
        seed: Chooses positions and moments. Another seed, other ones; the same seed, the same.
        rules: Run only the checks of these rules, such as those that failed before, and the plain read.

    Returns:
        The report; printed, a table of rules with what was skipped and why.

    Raises:
        ConformanceError: A rule is broken; the text says which, what was seen and what to do.
        ConfigurationError: It is no source, it has no splits to check with, or it cannot be reached as it is
            configured; so too the other errors of what is outside, `RetriableError`, `DataError` and `DataLossError`.
    """
    require_source(source, "check()")
    started = time.monotonic()
    subject = Subject(source, seconds=seconds, seed=seed, live=True)
    chosen = [each for each in ALL if rules is None or each.rule in rules or each is READ]
    try:
        hanging = _reach(subject)
        results = [hanging] if hanging is not None else [_judged(each, subject) for each in chosen]
    finally:
        subject.close()
    report = Report(source.name, results, seed, time.monotonic() - started)
    if report.failed:
        raise ConformanceError(report)
    return report


def _judged(each: Check, subject: Subject) -> Result:
    if each is READ or subject.time_left():
        return each.judge(subject)
    return Result(each.rule, each.text, "skipped", OVER)


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
        guarded(look, 2 * subject.patience)
    except (ConfigurationError, RetriableError, DataError, DataLossError):
        raise
    except Broken as broken:
        if broken.hangs:
            return Result(broken.rule or "ENU-6", "the source answers", "failed", broken.saw, broken.advice)
    except Exception:  # noqa: BLE001 - the checks that follow meet it again, and name the rule
        return None
    return None
