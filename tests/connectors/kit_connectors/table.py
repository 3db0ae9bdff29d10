# SPDX-License-Identifier: Apache-2.0
"""Which check catches which broken connector: `make kit-table` prints it.

Each broken connector of `alone` is judged by all checks of the kit, and exactly one of them may catch it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from forebay.testkit import ConformanceError, check
from forebay.testkit.checks import ALL
from kit_connectors import trial
from kit_connectors.alone import ALONE, STORED
from kit_connectors.broken import RELEASE
from kit_connectors.written import WRITTEN, caught_by


@dataclass(frozen=True)
class Line:
    """One broken connector: the rule that the kit names, the check meant for it, and the checks that caught it."""

    rule: str
    check: str
    connector: str
    caught_by: tuple[str, ...]

    @property
    def alone(self) -> bool:
        return self.caught_by == (self.check,)


def line(name: str) -> Line:
    """Judge the broken connector of a check by all checks."""
    source = ALONE[name]()
    RELEASE.clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning of the kit is in the report
            report = check(source, seconds=30, stored=STORED.get(name, ()))
    except ConformanceError as error:
        report = error.report
    finally:
        RELEASE.set()
    caught = [
        (each.run.__name__, result.rule)
        for each, result in zip(ALL, report.results, strict=True)
        if result.outcome in ("failed", "warned")
    ]
    rule = next((rule for by, rule in caught if by == name), "")
    return Line(rule, name, type(source).__name__, tuple(by for by, _ in caught))


def line_of_test(name: str) -> Line:
    """Judge the broken connector of a test of `SourceContract` that writes by all its tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rule, caught = caught_by(name)
    return Line(rule, name, WRITTEN[name].__name__, caught)


def lines() -> Iterator[Line]:
    """Judge the broken connectors: those of the checks in their order, then those of the tests that write."""
    yield from (line(each.run.__name__) for each in ALL)
    yield from (line_of_test(name) for name in WRITTEN)


def main() -> int:
    """Print the table as Markdown; return 1 if a connector was caught by another check too, or by none."""
    print("| rule | check | broken connector | caught by this check only |")
    print("|---|---|---|---|")
    gaps = 0
    for each in lines():
        gaps += not each.alone
        verdict = "yes" if each.alone else f"no: {', '.join(each.caught_by) or 'by none'}"
        print(f"| {each.rule} | `{each.check}` | `{each.connector}` | {verdict} |", flush=True)
    print("\n| planted bug | first line of the verdict of `check` alone |")
    print("|---|---|")
    for planted in [*trial.BUGS, *trial.HARMLESS]:
        report = trial.verdict(planted)
        gaps += report.verdict != ("failed" if planted.rules else "passed")
        print(f"| {planted.name} | {report.headline[:160].replace('|', '/')} |".replace("\n", " "), flush=True)
    print(f"\n{len(trial.BUGS)} bugs and {len(trial.HARMLESS)} harmless changes")
    print(f"{len(ALL)} checks and {len(WRITTEN)} tests that write, {gaps} gaps")
    return min(gaps, 1)


if __name__ == "__main__":
    sys.exit(main())
