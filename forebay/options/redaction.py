# SPDX-License-Identifier: Apache-2.0
"""Hides secrets in texts of connectors and client libraries, such as error messages that contain a token or a URL.

`redact` hides all live `Secret`s, all secret options, and the passwords and tokens in the URLs and DSNs of any option.
It hides passwords and tokens in all other URLs too, and the credentials of `Basic` headers. This module keeps no copy
of a secret.
"""

from __future__ import annotations

import base64
import json
import re
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import quote, quote_plus

from forebay.errors import redact_texts_with
from forebay.options.secret import REDACTED, live_secrets, mask_headers, mask_urls, secrets_in
from forebay.options.spec import OptionSpec, class_options

_LEAST: Final = 4
"""Minimum length of a secret to hide. Shorter texts occur by chance in every text."""

_WORD: Final = 8
"""Minimum length of a secret of letters only: a shorter one may be a common word, such as `none`."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.~-]+")
"""Texts that are the same when URL-encoded, in `repr`, and in JSON."""

_LEAST_BASE64: Final = 8
"""Minimum number of characters of Base64 to hide, which stand for six bytes. Fewer occur by chance."""

_TO_URLSAFE: Final = str.maketrans("+/", "-_")

_holders: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()


def hide_options(instance: object) -> None:
    """Make `redact` hide the secret options of `instance`, as long as it lives. `Secret`s are hidden without this call.

    Called by `coerce_fields`, and by hosts after unpickling an instance. Thread-safe.

    Raises:
        ContractError: The class of `instance` has an invalid declaration.
    """
    if any(True for _ in _hidden_in(instance)):
        _holders[id(instance)] = instance


def redact(text: str) -> str:
    """Return a text with `***` instead of every known secret and of the passwords and tokens in URLs and headers.

    The function also finds a secret that is URL-encoded, written as in `repr` (also of its bytes, in UTF-8 or Latin-1)
    or JSON, or within Base64, of which up to four bits at each end of the secret stay. It hides passwords and tokens
    inside secrets that are URLs, DSNs or JSON, and what a `Basic` header holds, whether known or not.

    It does not hide a secret of less than four characters, or of less than eight letters and nothing else; in Base64
    one of less than seven bytes, or with line breaks inside; nor one that is cut, hashed, in hexadecimal digits or in
    another encoding. Call it for every text of a connector or client library. Thread-safe.
    """
    for form in sorted({form for value in _known() for form in _forms(value)}, key=len, reverse=True):
        text = text.replace(form, REDACTED)
    return mask_headers(mask_urls(text))


redact_texts_with(redact)


def _known() -> Iterator[str]:
    for value in live_secrets():
        yield value
        yield from secrets_in(value, secret=True)
    for reference in _holders.valuerefs():
        instance = reference()
        if instance is not None:
            yield from _hidden_in(instance)


def _hidden_in(instance: object) -> Iterator[str]:
    for spec in class_options(type(instance)):
        yield from _secrets_in(getattr(instance, spec.python_name, None), spec, hidden=spec.secret is True)


def _secrets_in(value: object, spec: OptionSpec, *, hidden: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, entry in tuple(value.items()):
            yield from _secrets_in(entry, spec, hidden=hidden or spec.hides(str(key)))
    elif isinstance(value, (list, tuple, set, frozenset)):
        for entry in tuple(value):
            yield from _secrets_in(entry, spec, hidden=hidden)
    elif isinstance(value, str):
        if hidden:
            yield value
        yield from secrets_in(value, secret=hidden)


def _forms(value: str) -> Iterator[str]:
    for form in {value, value.strip()}:
        if len(form) < (_WORD if form.isalpha() else _LEAST):
            continue
        yield form
        for encoded in _encoded(form):
            yield from _in_base64(encoded)
        if not _PLAIN.fullmatch(form):
            yield from (quote(form, errors="replace"), quote(form, safe="", errors="replace"))
            yield quote_plus(form, errors="replace")
            for text in {form, *(encoded.decode("latin-1") for encoded in _encoded(form))}:  # http.client reads Latin-1
                yield text
                yield from _escaped(text)


def _encoded(text: str) -> Iterator[bytes]:
    for encoding in ("utf-8", "latin-1"):
        with suppress(UnicodeEncodeError):
            yield text.encode(encoding)


def _escaped(text: str) -> Iterator[str]:
    """Yield a text as inside of `repr`, `ascii` and the `repr` of its bytes, and of JSON."""
    for begin in ("", '"'):  # with both quotes around or in it, `repr` escapes the single ones
        whole = begin + text
        yield from (shown[1 + len(begin) : -1] for shown in (repr(whole), ascii(whole)))
        yield from (repr(encoded)[2 + len(begin) : -1] for encoded in _encoded(whole))
    yield from (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])


def _in_base64(secret: bytes) -> Iterator[str]:
    """Yield the characters of Base64 that stand for a secret and nothing else, wherever it begins in the whole text."""
    for before in range(3):  # Base64 makes four characters of three bytes
        whole = base64.b64encode(bytes(before) + secret).decode()
        inner = whole[(before * 8 + 5) // 6 : (before + len(secret)) * 8 // 6]
        if len(inner) >= _LEAST_BASE64:
            yield from {inner, inner.translate(_TO_URLSAFE)}
