# SPDX-License-Identifier: Apache-2.0
"""Hides secrets in texts of connectors and client libraries, such as error messages that contain a token or a URL.

`redact` hides all live `Secret`s, all secret options, and the passwords and tokens in the URLs and DSNs of any option.
It hides passwords in all other URLs too. This module keeps no copy of a secret.
"""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import quote, quote_plus

from forebay.errors import redact_texts_with
from forebay.options.secret import REDACTED, live_secrets, mask_urls, secrets_in
from forebay.options.spec import OptionSpec, class_options

_LEAST: Final = 4
"""Minimum length of a secret to hide. Shorter texts occur by chance in every text."""

_WORD: Final = 8
"""Minimum length of a secret of letters only: a shorter one may be a common word, such as `none`."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.~-]+")
"""Texts that are the same when URL-encoded, and in JSON."""

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
    """Return a text with `***` instead of every known secret and of the passwords and tokens in URLs.

    The function also finds a secret that is URL-encoded, or written as in `repr` or JSON. It hides passwords and tokens
    inside secrets that are URLs, DSNs or JSON. It does not hide a secret of less than four characters, or of less than
    eight letters and nothing else. Call it for every text of a connector or client library. Thread-safe.
    """
    for form in sorted({form for value in _known() for form in _forms(value)}, key=len, reverse=True):
        text = text.replace(form, REDACTED)
    return mask_urls(text)


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
        if not _PLAIN.fullmatch(form):
            yield from (quote(form, errors="replace"), quote(form, safe="", errors="replace"))
            yield from (quote_plus(form, errors="replace"), repr(form)[1:-1], json.dumps(form)[1:-1])
