# SPDX-License-Identifier: Apache-2.0
"""No secret, also in a malformed option, and no control character is in what the package prints, raises or stores."""

from __future__ import annotations

import json
import pickle
import traceback

import pytest

import forebay
from forebay.cli import main
from forebay.errors import DataError, ForebayError, parse_text
from forebay.framework.source import Source
from forebay.inspection.offsets import offsets
from forebay.registry import default_registry

SECRET = "hunter2-canary"
CONTROLS = "\x1b[31mred\x07\x9b\x7f\u202eevil\u2028\r"
PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="bob" '
LOGIN = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN"}
CLOSED = {"kafka.default.api.timeout.ms": "300", "fetchOffset.numRetries": "0"}

KAFKA = {
    "a password before the broker": {"kafka.bootstrap.servers": f"bob:{SECRET}@h:9092"},
    "a password before the second broker": {"kafka.bootstrap.servers": f"h:9092,bob:{SECRET}@g:9092"},
    "a URL of a broker": {"kafka.bootstrap.servers": f"PLAINTEXT://bob:{SECRET}@h:9092"},
    "a login": LOGIN | {"kafka.sasl.jaas.config": f'{PLAIN}password="{SECRET}";'},
    "a login without a semicolon": LOGIN | {"kafka.sasl.jaas.config": f'{PLAIN}password="{SECRET}"'},
    "a login without quotes": LOGIN | {"kafka.sasl.jaas.config": f"{PLAIN}password={SECRET};"},
    "a login with one quote": LOGIN | {"kafka.sasl.jaas.config": f'{PLAIN}password="{SECRET};'},
    "a login that is only the password": LOGIN | {"kafka.sasl.jaas.config": SECRET},
    "a login with a wrong name": LOGIN | {"kafka.sasl.jaas.config": f'{PLAIN}passwort="{SECRET}";'},
    "a login without a protocol": {"kafka.sasl.jaas.config": f'{PLAIN}password="{SECRET}";'},
    "another client's option": {"kafka.sasl.password": SECRET},
    "a misspelled option": {"kafka.sasl.pasword": SECRET},
    "a password of a key without TLS": {"kafka.ssl.key.password": SECRET},
    "a key that is no key": {"kafka.security.protocol": "SSL", "kafka.ssl.keystore.key": f"-----BEGIN {SECRET}"},
    "a misspelled option of the source": {"kafkaPassword": SECRET},
}
FILES = {
    "a URL with a password": {"path": f"https://bob:{SECRET}@127.0.0.1:1/x.csv"},
    "a URL with a password and a space": {"path": f" https://bob:{SECRET}@127.0.0.1:1/x.csv"},
    "a secret key": {"path": "s3://b/x", "storage.secret": SECRET, "storage.key": "k", "storage.region": "mars"},
    "a misspelled secret key": {"path": "s3://b/x", "storage.secrt": SECRET},
    "an access key id": {"path": "s3://b/x", "storage.key": SECRET},
    "a token of a local path": {"path": "/nowhere", "storage.token": SECRET},
}
CASES = [
    pytest.param(
        "forebay_kafka", {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"} | CLOSED | options, id=name
    )
    for name, options in KAFKA.items()
] + [pytest.param("forebay_files", {"fileFormat": "text"} | options, id=name) for name, options in FILES.items()]


def shown_of(error):
    """Everything that a user can see of an error."""
    copied = pickle.loads(pickle.dumps(error)) if isinstance(error, ForebayError) else error
    return ["".join(traceback.format_exception(error)), repr(error), str(error), str(copied), repr(copied)]


@pytest.mark.soak(
    but=[
        "a password before the broker",
        "a login without quotes",
        "a misspelled option",
        "a key that is no key",
        "a URL with a password and a space",
        "an access key id",
    ]
)
@pytest.mark.parametrize(("source", "options"), CASES)
def test_no_secret_is_shown(source, options, capsys, caplog, refusing):
    captures = []
    try:
        cls = default_registry.lookup(source)
        assert issubclass(cls, Source)
        made = cls.from_options(options)
        described = forebay.describe(made)
        captures += [repr(made), str(described), described._repr_html_()]
        if source == "forebay_kafka" or "token" in str(options):
            forebay.peek(made, 1)
    except ForebayError as error:
        captures += shown_of(error)
    arguments = [text for name, value in options.items() for text in ("-o", f"{name}={value}")]
    assert main(["describe", source, *arguments]) is not None
    printed = capsys.readouterr()
    captures += [printed.out, printed.err, caplog.text]
    assert [text for text in captures if SECRET in text] == []
    assert any(captures)


def test_no_control_character_of_an_error_reaches_a_terminal():
    error = DataError(f"the value {CONTROLS}\nis bad", split=CONTROLS, option=f"a\\{CONTROLS}", advice=CONTROLS)
    for text in shown_of(error):
        assert [char for char in text if not char.isprintable() and char != "\n"] == []
    parsed = parse_text("".join(traceback.format_exception(error)))
    assert parsed is not None
    assert (parsed.split, parsed.option, parsed.advice) == (error.split, error.option, error.advice)


def test_no_control_character_of_a_checkpoint_reaches_a_notebook(tmp_path):
    offset = {"v": 1, "source": f"x{CONTROLS}"}
    folder = tmp_path / f"c{CONTROLS[:4]}"
    (folder / "offsets").mkdir(parents=True)
    (folder / "commits").mkdir()
    (folder / "offsets" / "0").write_text("\n".join(["v1", '{"batchWatermarkMs":0}', json.dumps(offset)]))
    found = offsets(str(folder))
    for text in (str(found), found._repr_html_()):
        assert [char for char in text if not char.isprintable() and char != "\n"] == []
