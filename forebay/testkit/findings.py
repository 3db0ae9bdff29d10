# SPDX-License-Identifier: Apache-2.0
"""The exceptions that end a check with an outcome other than `passed`."""

from __future__ import annotations

from typing import ClassVar

from forebay.testkit.outcomes import Outcome


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
