# SPDX-License-Identifier: Apache-2.0
"""What checks come to, and what all of them together prove: the report, the error, the warning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["passed", "failed", "skipped", "n/a"]
"""`skipped`: it would have to run for this source, and did not; `n/a`: it has nothing to say about this source."""

Verdict = Literal["passed", "failed", "not proven"]

_LONGEST = 320
"""Characters of what was seen that the first line of an error holds."""


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
    """Raised inside a check: it cannot run as things are, so a bug may stay hidden.

    Args:
        why: Why it cannot.
        advice: What the author should do so that it can.
    """

    def __init__(self, why: str, advice: str = "") -> None:
        super().__init__(why)
        self.advice = advice


class OutOfTime(Skip):
    """Raised inside a check: the time of all checks is over."""

    def __init__(self) -> None:
        super().__init__("the time was over", "give `seconds` more")


class NotApplicable(Exception):
    """Raised inside a check: the source has not got what it is about, so there is nothing to check."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one check came to.

    Args:
        rule: The rule's id, as in docs/contract.md.
        check: What was checked, in words.
        outcome: Passed, failed, skipped (a bug may stay hidden), or not applicable.
        why: What was seen, or why it did not run.
        advice: What to do about it.
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

    @property
    def line(self) -> str:
        """What was seen and the next step, in one line."""
        seen = " ".join(self.why.split())
        seen = seen if len(seen) <= _LONGEST else f"{seen[:_LONGEST]}…"
        return f"{seen}; next step: {self.advice}" if self.advice else seen


@dataclass(frozen=True, slots=True)
class Report:
    """What all checks of one source came to; printed, it is the verdict in one line, and a table.

    Args:
        source: The source's name.
        results: One for each check, in the order they ran.
        seed: What chose the moments and positions; the same seed chooses the same again.
        seconds: How long it took.
        read: How much of the input was read, in words.
    """

    source: str
    results: Sequence[Result]
    seed: int
    seconds: float
    read: str = ""

    @property
    def failed(self) -> list[Result]:
        """The checks that failed."""
        return self._of("failed")

    @property
    def skipped(self) -> list[Result]:
        """The checks that did not run, so that a bug may stay hidden."""
        return self._of("skipped")

    @property
    def verdict(self) -> Verdict:
        """`passed` only where every check that says anything about this source ran, and none failed."""
        if self.failed:
            return "failed"
        return "not proven" if self.skipped else "passed"

    @property
    def headline(self) -> str:
        """The verdict in one line: the first rule that is broken or not proven, what happened, and the next step."""
        if self.failed:
            first = self.failed[0]
            more = sorted({result.rule for result in self.failed} - {first.rule})
            also = f" (also broken: {', '.join(more)})" if more else ""
            return f"{self.source} breaks {first.rule}: {first.line}{also} (seed {self.seed})"
        counts = f"{len(self._of('passed'))} checks passed, {len(self._of('n/a'))} do not apply"
        if self.skipped:
            first = self.skipped[0]
            rules = ", ".join(sorted({result.rule for result in self.skipped}))
            counts = f"{len(self.skipped)} checks skipped ({rules}), {counts}"
            return f"{self.source}: not proven: {first.line} ({counts} in {self.seconds:.1f} s, seed {self.seed})"
        read = f", {self.read}" if self.read else ""
        return f"{self.source}: passed: {counts}{read} in {self.seconds:.1f} s (seed {self.seed})"

    def rules(self, outcome: Outcome) -> set[str]:
        """Return the ids of the rules with a check of this outcome."""
        return {result.rule for result in self._of(outcome)}

    def __str__(self) -> str:
        rows = [
            f"  {result.rule:<7} {result.outcome:<8} {result.check}"
            + (f" ({result.why.splitlines()[0]})" if result.outcome in {"skipped", "n/a"} else "")
            for result in self.results
        ]
        failures = [f"\n{result}" for result in self.failed]
        return "\n".join([self.headline, *rows, *failures])

    def _of(self, outcome: Outcome) -> list[Result]:
        return [result for result in self.results if result.outcome == outcome]


class ConformanceError(AssertionError):
    """A source breaks rules of the contract; the first line says which, what was seen, and what to do.

    An `AssertionError`, because it is raised in tests.

    Args:
        report: All that was checked.
    """

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self.report = report

    def __str__(self) -> str:
        return "\n\n".join([self.report.headline, *(str(result) for result in self.report.failed)])


class NotProvenWarning(UserWarning):
    """`check` found nothing, and could not run every check: its text is the first line of the report."""


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")
