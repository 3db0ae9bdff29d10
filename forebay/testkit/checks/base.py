# SPDX-License-Identifier: Apache-2.0
"""What a check is, and how its end becomes a result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from forebay.errors import ContractError, ForebayError
from forebay.testkit.outcomes import Broken, NotApplicable, Result, Skip, UnfitRows
from forebay.testkit.subject import Subject
from forebay.testkit.watch import guarded


@dataclass(frozen=True, slots=True)
class Check:
    """One generic check: needs a source as it stands, and no more.

    Args:
        rule: The rule it is about; a failure may blame another one.
        text: What must hold, in words.
        run: Raises `Broken` or `Skip`, or whatever the connector raises.
    """

    rule: str
    text: str
    run: Callable[[Subject], None]

    @property
    def test_name(self) -> str:
        """The name of the test method that runs it."""
        return f"test_{self.rule.lower().replace('-', '_')}_{self.run.__name__}"

    def judge(self, subject: Subject, *, least: float = 0.0) -> Result:
        """Run it and say what it came to. A connector that hangs is left behind.

        Args:
            subject: The source.
            least: Seconds that it may take although the time of all checks is over.

        Raises:
            UnfitRows: The author's test is wrong, so nothing can be said of the source.
        """
        deadline = max(subject.deadline, time.monotonic() + least)
        try:
            guarded(lambda: self.run(subject), 2 * subject.patience, deadline)
        except UnfitRows:
            raise
        except NotApplicable as why:
            return Result(self.rule, self.text, "n/a", str(why))
        except Skip as skipped:
            return Result(self.rule, self.text, "skipped", str(skipped), skipped.advice)
        except Broken as broken:
            if broken.hangs:
                subject.hurry()
            return Result(broken.rule or self.rule, self.text, "failed", broken.saw, broken.advice)
        except ForebayError as error:
            rule = _TOLD_AS.get(error.rule or "", error.rule) or self.rule
            return Result(rule, self.text, "failed", _told(error), error.advice or _ADVICE)
        except Exception as error:  # noqa: BLE001 - whatever a connector raises is a finding
            return Result(self.rule, self.text, "failed", f"{type(error).__name__}: {error}", _ADVICE)
        return Result(self.rule, self.text, "passed")


Checks = list[Check]


def check_into(checks: Checks) -> Callable[[Callable[[Subject], None]], Callable[[Subject], None]]:
    """Decorate a function as a check and append it to a list; its docstring begins with the rule and what must hold."""

    def decorate(run: Callable[[Subject], None]) -> Callable[[Subject], None]:
        rule, _, text = (run.__doc__ or run.__name__).partition("\n")[0].partition(": ")
        checks.append(Check(rule, text.removesuffix("."), run))
        return run

    return decorate


_TOLD_AS = {"RB-5": "SR-4", "CTX-2": "ENU-2"}
"""The framework's own rules that a connector can break, and what they are for its author."""

_ADVICE = "raise forebay's errors for what may happen outside, RetriableError for what passes; mend the rest"


def _told(error: ForebayError) -> str:
    where = [f"{name} {value}" for name in ("split", "position") if (value := getattr(error, name)) is not None]
    kind = "" if isinstance(error, ContractError) else f"{type(error).__name__}: "
    return f"{kind}{error.message} ({', '.join(where)})" if where else f"{kind}{error.message}"
