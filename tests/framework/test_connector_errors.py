# SPDX-License-Identifier: Apache-2.0
"""Errors of connectors show no secrets in texts, notes, causes and contexts."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

import pyarrow as pa
import pytest

import forebay
from forebay.errors import FatalError, RetriableError
from forebay.framework.runtime.connector_errors import (
    ConcealedError,
    closing,
    connector_error,
    without_secrets,
    wrap_errors,
)
from forebay.framework.split import Split
from forebay.options import Secret, option

TOKEN = "t0p-secret-42"


@pytest.fixture(autouse=True)
def secret() -> Secret:
    return Secret(TOKEN)


def printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=0))


def raised(*, cause: Exception | None = None, context: Exception | None = None, error: Exception) -> Exception:
    """Return an error with a cause, a context and a traceback."""
    error.__context__ = context
    if cause is not None:
        error.__cause__ = cause
    with contextlib.suppress(type(error)):
        raise error
    return error


def test_an_error_without_a_secret_stays_itself() -> None:
    error = raised(error=KeyError("x"), cause=OSError("y"))
    assert without_secrets(error) is error
    assert connector_error(error, source="s", doing="read()").__cause__ is error


def test_a_foreign_error_that_shows_a_secret_is_replaced_and_keeps_type_text_and_frames() -> None:
    error = raised(error=OSError(f"401 {TOKEN}"), cause=KeyError(f"also {TOKEN}"))
    error.add_note(f"sent {TOKEN}")
    found = connector_error(error, source="s", doing="read()")
    assert isinstance(found, FatalError)
    assert "OSError: 401 ***" in found.message
    assert isinstance(found.__cause__, ConcealedError)
    assert found.__cause__.__traceback__ is error.__traceback__
    assert "sent ***" in printed(found)
    assert "KeyError: 'also ***'" in printed(found)
    assert TOKEN not in printed(found)


def test_an_error_of_ours_stays_itself_and_loses_the_secret_everywhere() -> None:
    error = raised(error=RetriableError(f"try {TOKEN}", position=f"p {TOKEN}"), context=OSError(f"401 {TOKEN}"))
    found = connector_error(error, source="s", doing="read()")
    assert found is error
    assert (found.message, found.position) == ("try ***", "p ***")
    assert "OSError: 401 ***" in printed(found)
    assert TOKEN not in printed(found) + repr(found)


def test_a_cause_further_down_the_chain_is_replaced_too() -> None:
    low = raised(error=RetriableError("middle"), cause=OSError(TOKEN))
    error = raised(error=LookupError("no such thing"), context=low)
    found = connector_error(error, source="s", doing="read()")
    assert TOKEN not in printed(found)
    assert "middle" in printed(found)


def test_an_error_that_cannot_be_printed_and_a_circle_of_causes_end() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError(TOKEN)

    first, second = Mute(), OSError(TOKEN)
    first.__cause__, second.__cause__ = second, first
    assert TOKEN not in printed(connector_error(first, source="s", doing="read()"))


def test_a_missing_module_gets_advice_on_installing_it() -> None:
    for error in (ModuleNotFoundError("No module named 'shop'"), ModuleNotFoundError(f"No module named {TOKEN}")):
        text = connector_error(error, source="s", doing="read()")
        assert "ModuleNotFoundError: No module named" in text.message
        for way in ("install it", "spark.addArtifacts", "at the top of the source's module"):
            assert way in (text.advice or "")
        assert "RetriableError" not in str(text)


def test_wrap_errors_and_closing_show_no_secret() -> None:
    with pytest.raises(FatalError) as caught, wrap_errors("s", "schema()"):
        raise OSError(TOKEN)
    assert TOKEN not in printed(caught.value)

    def close() -> None:
        raise OSError(TOKEN)

    with pytest.raises(KeyError) as first, closing("s", close):
        raise KeyError("x")
    assert "OSError: ***" in printed(first.value)


class Leaky(forebay.SimpleSource):
    """Its client writes the token into its errors."""

    place: str
    kind: str = "OSError"
    token: Secret
    headers: dict[str, str] = option(prefix="headers.")

    def call(self, place: str) -> None:
        if place == self.place:
            kind = {"OSError": OSError, "RetriableError": RetriableError}[self.kind]
            raise kind(f"401 for {self.token.reveal()} and {self.headers['auth.token']}")

    def schema(self) -> pa.Schema:
        self.call("schema")
        return pa.schema({"n": pa.int64()})

    def splits(self) -> list[str]:
        self.call("splits")
        return ["s1"]

    def read(self, split: Split) -> Iterator[dict[str, int]]:
        self.call("read")
        yield {"n": 1}


@pytest.mark.parametrize("place", ["schema", "splits", "read"])
@pytest.mark.parametrize("kind", ["OSError", "RetriableError"])
def test_the_in_process_host_shows_no_secret_in_errors_and_logs(
    place: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = forebay.HostOptions(retries=1, retry_first_pause="0s")
    for look in (False, True):
        source = Leaky(place=place, kind=kind, token=Secret("other-token-7"), headers={"auth.token": "hunter22"})
        with pytest.raises(Exception, match=r"401 for \*\*\* and \*\*\*") as caught:
            if look:
                forebay.peek(source)
            else:
                forebay.run(source, options=options).to_table()
        del source
        text = "".join(traceback.format_exception(caught.value)) + caplog.text
        assert "other-token" not in text
        assert "hunter22" not in text


def test_what_is_only_logged_shows_no_secret_either(caplog: pytest.LogCaptureFixture) -> None:
    password = "super-secret-pw"
    dsn = Secret(f"postgresql://bob:{password}@db/orders")

    class Client:
        def close(self) -> None:
            raise OSError(f"bad password: {password}, token {TOKEN}") from KeyError(dsn.reveal())

    with caplog.at_level("INFO"):
        forebay.discard(Client())
    assert "closing a discarded client (Client) failed" in caplog.text and "bad password: ***" in caplog.text
    assert password not in caplog.text and TOKEN not in caplog.text
