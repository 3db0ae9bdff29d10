# SPDX-License-Identifier: Apache-2.0
"""Passwords and tokens inside of URLs, DSNs and JSON are hidden like whole secrets."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

import pyarrow as pa
import pytest

import forebay
from forebay.errors import RetriableError
from forebay.options import Secret, coerce_fields, option, redact

PASSWORD = "super/secret@pw1"
ENCODED = quote(PASSWORD, safe="")

TEXTS = {
    "URL": f"postgresql+psycopg://bob:{ENCODED}@db:5432/orders?sslmode=require",
    "URL without user": f"redis://:{ENCODED}@cache/0",
    "URL in the middle": f"jdbc:mysql://bob:{ENCODED}@db/orders",
    "query": f"https://h/x.csv?a=1&sig={ENCODED}&b=2",
    "JDBC query": f"jdbc:postgresql://db/orders?user=bob&password={ENCODED}",
    "JDBC": f"jdbc:sqlserver://db;user=bob;password={PASSWORD};encrypt=true",
    "libpq": f"host=db user=bob password={PASSWORD} dbname=orders",
    "libpq, quoted": f"password = '{PASSWORD}' host=db",
    "ODBC": f"DRIVER={{ODBC Driver 18}};UID=bob;PWD={{{PASSWORD}}};Encrypt=yes",
    "ADO": f'Server=db;User Id=bob;Password="{PASSWORD}";',
    "Azure": f"DefaultEndpointsProtocol=https;AccountName=me;AccountKey={PASSWORD};EndpointSuffix=core",
    "JAAS": f'org.apache.kafka.PlainLoginModule required username="bob" password="{PASSWORD}";',
}
ONLY_IN_SECRETS = {
    "not encoded": f"postgresql://bob:{PASSWORD}@db/orders",
    "Oracle": f"jdbc:oracle:thin:bob/{PASSWORD.replace('/', '').replace('@', '')}@db:1521/orders",
    "header": f"Authorization: Bearer {PASSWORD}",
    "JSON": '{"type": "service_account", "deep": {"private_key": "super/secret@pw1"}}',
}


@dataclass(frozen=True)
class Shown:
    """An option that is not declared secret."""

    dsn: str = option("")

    def __post_init__(self) -> None:
        coerce_fields(self)


class Table(forebay.SimpleSource):
    """The same as a source."""

    dsn: str
    more: dict[str, str] = option(default_factory=dict, prefix="more.")

    def schema(self) -> pa.Schema:
        return pa.schema([("k", pa.int64())])

    def read(self, split: forebay.Split) -> Iterator[tuple[dict[str, int], int]]:
        return iter(())


def says(password: str) -> list[str]:
    return [
        f"bad password: {password}",
        f"bad password: {password!r}",
        f"GET /?p={quote(password)}",
        f"GET /?p={quote(password, safe='')}",
    ]


@pytest.mark.parametrize("text", [*TEXTS.values(), *ONLY_IN_SECRETS.values()], ids=[*TEXTS, *ONLY_IN_SECRETS])
def test_the_password_inside_of_a_secret_is_hidden_alone(text: str) -> None:
    kept = Secret(text)
    password = PASSWORD if "oracle" not in text else "supersecretpw1"
    for said in [text, *says(password)]:
        assert "secret" not in redact(said).replace("bad password", ""), redact(said)
    assert redact("cannot connect bob to db:5432/orders") == "cannot connect bob to db:5432/orders"
    assert kept


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_password_inside_of_a_plain_option_is_hidden_and_the_rest_is_shown(text: str) -> None:
    source = Table(dsn=text, more={"url": text})
    for said in [repr(source), str(forebay.describe(Table(dsn=text))), *map(redact, says(PASSWORD))]:
        assert "super" not in said and "***" in said, said
    assert any(shown in redact(text) for shown in ("db", "bob", "cache", "h/x.csv", "core"))
    assert source.dsn == text


def test_what_is_gone_is_forgotten_also_inside_of_texts() -> None:
    held = Shown(TEXTS["libpq"])
    assert PASSWORD not in redact(f"bad password: {PASSWORD}")
    del held
    gc.collect()
    assert PASSWORD in redact(f"bad password: {PASSWORD}")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no ftp://bob:hunter22@h/x today", "no ftp://bob:***@h/x today"),
        (
            "url=URL('https://h/x?a=1&X-Amz-Signature=abcd1234&b=2')",
            "url=URL('https://h/x?a=1&X-Amz-Signature=***&b=2')",
        ),
        ("http://h:80/a@b?c=d:e@f", "http://h:80/a@b?c=d:e@f"),
        ("set kafka.ssl.key.password=… in the options", "set kafka.ssl.key.password=… in the options"),
        ("s3://bucket/day=1/token=abcd1234/x.csv", "s3://bucket/day=1/token=abcd1234/x.csv"),
        (
            "Max retries exceeded with url: /cb?token=abcd1234&sig=abcd5678 (Caused by X('no'))",
            "Max retries exceeded with url: /cb?token=***&sig=*** (Caused by X('no'))",
        ),
        (
            "with url: /b/o?X-Amz-Date=1&X-Amz-Signature=abcd1234&x=2",
            "with url: /b/o?X-Amz-Date=1&X-Amz-Signature=***&x=2",
        ),
        ("<Uri>/b/o?a=1&amp;sig=abcd1234&amp;b=2</Uri>", "<Uri>/b/o?a=1&amp;sig=***&amp;b=2</Uri>"),
        ("to /cb#access_token=abcd1234&state=1", "to /cb#access_token=***&state=1"),
        ("cannot open //bob:hunter22@h/x", "cannot open //bob:***@h/x"),
        ("url='//bob:hunter22@h/x'", "url='//bob:***@h/x'"),
        ("nonnumeric port: 'hunter22@h'", "nonnumeric port: '***@h'"),
        ("is a?b=c, or a&b=c?", "is a?b=c, or a&b=c?"),
        ("x && token=5; why? token=6", "x && token=5; why? token=6"),
        ("s3://bucket//day:1@night/x.csv", "s3://bucket//day:1@night/x.csv"),
        ("no s3://AKIA:12/r+7/x=@b/x today", "no s3://AKIA:***@b/x today"),
        ("no https://u:p@s:s/w@rd@h/x today", "no https://u:***@h/x today"),
        ("no https://me@corp.com:pw/1@h/x today", "no https://***@corp.com:***@h/x today"),
        ("no https://tok-en@1@h/x today", "no https://***@h/x today"),
        ("'/cwd/http:/u:hunter+7/x@h'", "'/cwd/http:/u:***@h'"),
        ("s3://bucket/a:b@c.csv", "s3://bucket/a:b@c.csv"),
        ("http://[::1]:8080/a@b, s3://b/12:00@y", "http://[::1]:8080/a@b, s3://b/12:00@y"),
        ("s3://arn:aws:s3:x:1:accesspoint:a/x@y", "s3://arn:aws:s3:x:1:accesspoint:a/x@y"),
        ("see // bob:x@h, a//b:c@d", "see // bob:x@h, a//b:c@d"),
    ],
)
def test_urls_that_nobody_declared_lose_their_passwords_in_any_text(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(shown) == shown


def test_an_error_shows_no_password_in_its_text_its_repr_or_its_pickle() -> None:
    kept = Secret(TEXTS["URL"])
    error = RetriableError(f"bad password: {PASSWORD}", source="orders", position=PASSWORD, advice=f"try {ENCODED}")
    copied = pickle.dumps(error)
    for shown in (str(error), repr(error), repr(copied), repr(pickle.loads(copied).__dict__)):
        assert "super" not in shown
    assert kept
