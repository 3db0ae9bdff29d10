# SPDX-License-Identifier: Apache-2.0
"""What checks come to: passed, failed with a rule, or skipped with a reason; the report of all; the error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["passed", "failed", "skipped"]


class Broken(Exception):
    """Raised inside a check: a rule is broken.

    Args:
        saw: What was seen, one sentence.
        advice: What the author should do.
        rule: The broken rule; that of the check unless given.
        hangs: The connector did not come back from a call, and has been left behind.
    """

    def __init__(self, saw: str, advice: str, *, rule: str | None = None, hangs: bool = False) -> None:
        super().__init__(saw)
        self.saw = saw
        self.advice = advice
        self.rule = rule
        self.hangs = hangs


class UnfitRows(AssertionError):
    """What `write()` of a `SourceContract` returned cannot be compared with: a mistake of the test, not of the source.

    Args:
        why: What is wrong with it.
    """

    def __init__(self, why: str) -> None:
        super().__init__(f"write() must return the n rows it wrote, as dicts that fit schema(): {why}")


class RepeatedSplit(AssertionError):
    """`add_split()` of a `SourceContract` returned an id again: a mistake of the test, not of the source.

    Args:
        split_id: The id.
        made: How many splits there were.
    """

    def __init__(self, split_id: str, made: int) -> None:
        super().__init__(
            f"add_split() must make a new part each time, and returned {split_id!r} again: for a source that cannot "
            f"have more than {made}, say most_splits = {made} in the class"
        )


class Skip(Exception):
    """Raised inside a check: it cannot say anything about this source; the text says why."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one check came to.

    Args:
        rule: The rule's id, as in docs/contract.md.
        check: What was checked, in words.
        outcome: Passed, failed or skipped.
        why: What was seen, or why it was skipped.
        advice: What to do about a failure.
    """

    rule: str
    check: str
    outcome: Outcome
    why: str = ""
    advice: str = ""

    def __str__(self) -> str:
        lines = [f"{self.rule}: {self.check}"]
        lines += [f"  saw: {_indented(self.why)}"] if self.why else []
        lines += [f"  next step: {_indented(self.advice)}"] if self.advice else []
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Report:
    """What all checks of one source came to; printed, it is a table.

    Args:
        source: The source's name.
        results: One for each check, in the order they ran.
        seed: What chose the moments and positions; the same seed chooses the same again.
        seconds: How long it took.
    """

    source: str
    results: Sequence[Result]
    seed: int
    seconds: float

    @property
    def failed(self) -> list[Result]:
        """The checks that failed."""
        return [result for result in self.results if result.outcome == "failed"]

    def rules(self, outcome: Outcome) -> set[str]:
        """Return the ids of the rules with a check of this outcome."""
        return {result.rule for result in self.results if result.outcome == outcome}

    def __str__(self) -> str:
        counts = ", ".join(
            f"{sum(result.outcome == outcome for result in self.results)} {outcome}"
            for outcome in ("passed", "failed", "skipped")
        )
        head = f"{self.source}: {counts} in {self.seconds:.1f} s (seed {self.seed})"
        rows = [
            f"  {result.rule:<7} {result.outcome:<8} {result.check}"
            + (f" ({result.why.splitlines()[0]})" if result.outcome == "skipped" else "")
            for result in self.results
        ]
        failures = [f"\n{result}" for result in self.failed]
        return "\n".join([head, *rows, *failures])


class ConformanceError(AssertionError):
    """A source breaks rules of the contract; the text says which, what was seen, and what to do.

    An `AssertionError`, because it is raised in tests.

    Args:
        report: All that was checked.
    """

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self.report = report

    def __str__(self) -> str:
        failed = self.report.failed
        head = f"{self.report.source} breaks {len(failed)} rule{'s' * (len(failed) != 1)} (seed {self.report.seed})"
        return "\n\n".join([head, *(str(result) for result in failed)])


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")
