# SPDX-License-Identifier: Apache-2.0
"""`Check`: a function that checks some rules of a source. Running it makes a `Result`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from forebay.errors import ContractError, ForebayError, RetriableError
from forebay.framework.runtime.connector_errors import connector_error
from forebay.testkit.harness.calls import run_guarded
from forebay.testkit.harness.subject import Subject
from forebay.testkit.outcomes import UNANSWERED, AuthorMistake, Finding, OutOfTime, Result


@dataclass(frozen=True, slots=True)
class Check:
    """A generic check, which needs only a source and does not change its input.

    Args:
        rules: The ids of the rules that it checks, its main rule first. A failure may name yet another rule.
        text: What must hold, in words.
        run: The function. If a rule is broken, it raises a `Finding`, or the connector's own error.
        essential: Whether the check runs even if the time limit of all checks is reached.
    """

    rules: tuple[str, ...]
    text: str
    run: Callable[[Subject], None]
    essential: bool = False

    @classmethod
    def of(cls, run: Callable[[Subject], None], *, essential: bool = False) -> Check:
        """Create a check from a function, whose docstring begins with `RULE-1, RULE-2: ` and the text of the check."""
        rules, _, text = (run.__doc__ or run.__name__).partition("\n")[0].partition(": ")
        return cls(tuple(rules.split(", ")), text.removesuffix("."), run, essential)

    @property
    def rule(self) -> str:
        """The id of the main rule. A failure names this rule, unless its `Finding` names another one."""
        return self.rules[0]

    @property
    def test_name(self) -> str:
        """The name of the test method that runs the check."""
        return f"test_{self.rule.lower().replace('-', '_')}_{self.run.__name__}"

    def judge(self, subject: Subject) -> Result:
        """Run the check and return its result. If a call of the connector hangs, the check's thread is abandoned.

        Raises:
            AuthorMistake: The author's test is wrong, so the source cannot be judged.
        """
        deadline = subject.deadline
        try:
            if self.essential:
                deadline = max(deadline, time.monotonic() + 2 * subject.patience)
            else:
                subject.need_time()
            run_guarded(lambda: self.run(subject), 2 * subject.patience, deadline)
        except AuthorMistake:
            raise
        except Finding as finding:
            if finding.hangs:
                subject.hurry()
            saw, advice = finding.saw, finding.advice
            if isinstance(finding, OutOfTime) and subject.failures_retried:
                count = subject.failures_retried
                saw = f"{saw}, and until then {count} failures of the source were retried, each after a pause"
                advice = f"{advice}, or check a service that does not fail or limit the rate: the log has each failure"
            return Result(finding.rule or self.rule, self.text, finding.outcome, saw, advice)
        except RetriableError as error:
            # Each call was made again, as hosts do: the service answers no more, whatever the connector is worth.
            return Result(self.rule, self.text, "skipped", _text_of(error), error.advice or UNANSWERED)
        except ForebayError as error:
            rule = _AUTHORS_RULE.get(error.rule or "", error.rule) or self.rule
            return Result(rule, self.text, "failed", _text_of(error), error.advice or _ADVICE)
        except Exception as error:  # noqa: BLE001 - any error of a connector is a finding
            advice = connector_error(error, source=subject.source.name, doing=self.text).advice or _ADVICE
            return Result(self.rule, self.text, "failed", f"{type(error).__name__}: {error}", advice)
        return Result(self.rule, self.text, "passed")


Checks = list[Check]


def check_into(checks: Checks) -> Callable[[Callable[[Subject], None]], Callable[[Subject], None]]:
    """Return a decorator that makes a `Check` of a function, and appends it to `checks`."""

    def decorate(run: Callable[[Subject], None]) -> Callable[[Subject], None]:
        checks.append(Check.of(run))
        return run

    return decorate


_AUTHORS_RULE = {"RB-5": "SR-4", "CTX-2": "ENU-2"}
"""Maps rules of the framework that a connector can break to the author's rule that is broken in this case."""

_ADVICE = (
    "raise RetriableError for temporary failures, and forebay's other errors for lasting failures outside the "
    "connector; correct all other errors"
)


def _text_of(error: ForebayError) -> str:
    where = [f"{name} {value}" for name in ("split", "position") if (value := getattr(error, name)) is not None]
    kind = "" if isinstance(error, ContractError) else f"{type(error).__name__}: "
    return f"{kind}{error.message} ({', '.join(where)})" if where else f"{kind}{error.message}"
