# SPDX-License-Identifier: Apache-2.0
"""What a check raises to end with another outcome than `passed`."""

from __future__ import annotations

from typing import ClassVar

from forebay.testkit.outcomes import Outcome


class Finding(Exception):
    """Ends a check with the outcome of its class.

    Args:
        saw: What happened, or why the check did not run.
        advice: The author's next step.
        rule: The rule that is broken; that of the check unless given.
        hangs: The connector did not return from a call, whose thread is abandoned.
    """

    outcome: ClassVar[Outcome]

    def __init__(self, saw: str, advice: str = "", *, rule: str | None = None, hangs: bool = False) -> None:
        super().__init__(saw)
        self.saw = saw
        self.advice = advice
        self.rule = rule
        self.hangs = hangs


class Broken(Finding):
    """A rule is broken."""

    outcome = "failed"


class Warned(Finding):
    """No rule is broken, but a host does work that it need not do."""

    outcome = "warned"


class Skip(Finding):
    """The check cannot run as things are, so a bug may stay hidden."""

    outcome = "skipped"


class OutOfTime(Skip):
    """The time of all checks is over."""

    def __init__(self) -> None:
        super().__init__("the time was over", "give `seconds` more")


class NotApplicable(Finding):
    """The source does not have what the check is about."""

    outcome = "n/a"


class AuthorMistake(AssertionError):
    """A `SourceContract` is wrong, so that nothing can be said of its source."""


def unfit_rows(why: str) -> AuthorMistake:
    """Return the error of a `write()` whose rows cannot be compared with."""
    return AuthorMistake(f"write() must return the n rows it wrote, as dicts that fit schema(): {why}")
