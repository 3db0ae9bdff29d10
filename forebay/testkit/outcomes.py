# SPDX-License-Identifier: Apache-2.0
"""The outcomes of checks, and their summary: the report, the error, the warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

Outcome = Literal["passed", "warned", "failed", "skipped", "n/a"]
"""`warned`: no rule is broken, but a host does unnecessary work. `skipped`: the check applies, but could not run, so a
bug may stay hidden. `n/a`: the source does not have the checked feature."""

Verdict = Literal["passed", "failed", "not proven"]

_LONGEST = 320
"""Maximum characters of `why` in a headline."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one check.

    Args:
        rule: The rule's id, as in docs/contract.md.
        check: What was checked, in words.
        outcome: How the check ended.
        why: What happened, or why the check did not run.
        advice: The author's next step.
    """

    rule: str
    check: str
    outcome: Outcome
    why: str = ""
    advice: str = ""

    def __str__(self) -> str:
        lines = [f"{self.rule}: {self.check}"]
        lines += [f"  {name}: {text}" for name, text in (("saw", self.why), ("next step", self.advice)) if text]
        return "\n".join(line.replace("\n", "\n    ") for line in lines)

    @property
    def line(self) -> str:
        """What happened and the next step, in one line."""
        seen = " ".join(self.why.split())
        seen = seen if len(seen) <= _LONGEST else f"{seen[:_LONGEST]}…"
        return f"{seen}; next step: {self.advice}" if self.advice else seen


@dataclass(frozen=True, slots=True)
class Report:
    """The outcomes of all checks of one source. When printed, it shows the verdict in one line, and a table.

    Args:
        source: The source's name.
        results: The results of the checks, in the order they ran.
        seed: The seed of the random positions and steps at which checks interrupted a read.
        seconds: The duration of all checks, in seconds.
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
    def warned(self) -> list[Result]:
        """The checks that found unnecessary work for a host, but no broken rule."""
        return self._of("warned")

    @property
    def skipped(self) -> list[Result]:
        """The checks that apply to the source but could not run, so a bug may stay hidden."""
        return self._of("skipped")

    @property
    def verdict(self) -> Verdict:
        """`failed` if a check failed; `passed` if no check failed or was skipped; else `not proven`."""
        if self.failed:
            return "failed"
        return "not proven" if self.skipped else "passed"

    @property
    def headline(self) -> str:
        """The verdict in one line: the first broken rule, or each reason why a check did not run, and the next step."""
        if self.failed:
            first = self.failed[0]
            more = sorted({result.rule for result in self.failed} - {first.rule})
            also = f" (also broken: {', '.join(more)})" if more else ""
            return f"{self.source} breaks {first.rule}: {first.line}{also} (seed {self.seed})"
        passed, not_applicable = len(self._of("passed")), len(self._of("n/a"))
        counts = f"{_checks(passed)} passed, {not_applicable} {'does' if not_applicable == 1 else 'do'} not apply"
        if self.skipped:
            reasons: dict[str, str] = {}
            for result in self.skipped:
                reasons.setdefault(result.advice, result.line)
            why = "; also: ".join(reasons.values())
            rules = ", ".join(sorted(self.rules("skipped")))
            counts = f"{_checks(len(self.skipped))} skipped ({rules}), {counts}"
            return f"{self.source}: not proven: {why} ({counts} in {self.seconds:.1f} s, seed {self.seed})"
        read = f", {self.read}" if self.read else ""
        verdict = f"{self.source}: passed: {counts}{read} in {self.seconds:.1f} s (seed {self.seed})"
        return "; ".join([verdict, *(f"warning of {result.rule}: {result.line}" for result in self.warned)])

    @property
    def replay(self) -> str:
        """How to run the failed checks again, and where their rules are explained."""
        rules = sorted(self.rules("failed"))
        if all(rule.startswith("SPK") for rule in rules):
            return "replay: check_on_spark(spark, source)\nrules: docs/contract.md"
        return (
            f"replay: check(source, seed={self.seed}, rules={rules}), or this test of a SourceContract with "
            f"seed = {self.seed}\nrules: docs/contract.md"
        )

    def rules(self, outcome: Outcome) -> set[str]:
        """Return the ids of the rules with a check of this outcome."""
        return {result.rule for result in self._of(outcome)}

    def __str__(self) -> str:
        rows = [
            f"  {result.rule:<7} {result.outcome:<8} {result.check}"
            + (f" ({result.why.splitlines()[0]})" if result.outcome in {"skipped", "n/a"} else "")
            for result in self.results
        ]
        return "\n".join([self.headline, *rows, *(f"\n{result}" for result in [*self.failed, *self.warned])])

    def _of(self, outcome: Outcome) -> list[Result]:
        return [result for result in self.results if result.outcome == outcome]


class ConformanceError(AssertionError):
    """A source breaks rules of the contract. The first line has the first rule, what happened, and the next step.

    An `AssertionError`, because it is raised in tests.

    Args:
        report: The outcomes of all checks.
    """

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self.report = report

    def __str__(self) -> str:
        results = [str(result) for result in self.report.failed]
        return "\n\n".join([self.report.headline, *results, self.report.replay])


class ConformanceWarning(UserWarning):
    """A check found unnecessary work for a host, but no broken rule."""


class NotProvenWarning(ConformanceWarning):
    """No check failed, but a check that applies to the source could not run. The text is the report's first line."""


def _checks(count: int) -> str:
    return f"{count} check{'s' * (count != 1)}"


# -- The exceptions that end a check with an outcome other than `passed`.


class Finding(Exception):
    """Ends the check that raises it, with the `outcome` of its subclass.

    Args:
        saw: What happened, or why the check did not run.
        advice: The author's next step.
        rule: The broken rule; by default the rule of the check.
        hangs: Whether a call of the connector did not return, so that the thread of the check was abandoned.
    """

    outcome: ClassVar[Outcome]

    def __init__(self, saw: str, advice: str = "", *, rule: str | None = None, hangs: bool = False) -> None:
        super().__init__(saw)
        self.saw = saw
        self.advice = advice
        self.rule = rule
        self.hangs = hangs


class Broken(Finding):
    """The source breaks a rule."""

    outcome = "failed"


class Warned(Finding):
    """No rule is broken, but the source causes a host unnecessary work."""

    outcome = "warned"


class Skip(Finding):
    """The check applies to the source, but cannot run, so a bug may stay hidden."""

    outcome = "skipped"


UNANSWERED = "check a service that answers and does not limit the rate"
"""The next step of a check that could not run because the service failed."""


class OutOfTime(Skip):
    """The time limit of all checks is reached."""

    def __init__(self) -> None:
        super().__init__("the time limit was reached", "allow more `seconds`")


class NotApplicable(Finding):
    """The source does not have the feature that is checked."""

    outcome = "n/a"


class AuthorMistake(AssertionError):
    """A `SourceContract` is wrong, so its source cannot be judged."""


def unfit_rows(why: str) -> AuthorMistake:
    """Return the error for a `write()` that returned rows which cannot be compared."""
    must = "write() must return the n rows that it wrote, as dicts of the values to be read, of the types in schema()"
    return AuthorMistake(f"{must}: {why}")
