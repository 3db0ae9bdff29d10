# SPDX-License-Identifier: Apache-2.0
"""Hide what is secret in texts of others: clients put the token or the whole URL into their error messages.

Nothing is kept here: known is what lives in this process, as a `Secret` or in an option that must not be shown, and the
passwords and tokens inside of these, and inside of URLs and DSNs in any option. URLs in texts lose their passwords too.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import quote, quote_plus

from forebay.errors import print_through
from forebay.options.classes import class_options
from forebay.options.embedded import mask_urls, secrets_in
from forebay.options.secret import REDACTED, live_secrets
from forebay.options.spec import OptionSpec

_LEAST: Final = 4
"""Characters of the shortest secret that is looked for: less would be found in every text."""

_WORD: Final = 8
"""Characters from which on letters alone are looked for: a shorter one may be any word, such as `none`."""

_holders: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()


def hide_options(instance: object) -> None:
    """Let `redact` know what is secret in the options of an instance, but no `Secret`s, for as long as it lives.

    Called by `coerce_fields` where an instance is made, and by hosts where one arrived by pickle; any thread.

    Raises:
        ContractError: Its class declares something that cannot work.
    """
    if any(True for _ in _hidden_in(instance)):
        _holders[id(instance)] = instance


def redact(text: str) -> str:
    """Return a text with `***` for every known secret, also as URLs and `repr` write it, and for passwords in URLs.

    Known are also the parts of secrets that are URLs, DSNs or JSON: the password of a DSN is found alone.

    Too short to be found are secrets of less than four characters, and of less than eight that are letters alone.
    Called wherever a text of a connector or its client is about to be shown; any thread.
    """
    for form in sorted({form for value in _known() for form in _forms(value)}, key=len, reverse=True):
        text = text.replace(form, REDACTED)
    return mask_urls(text)


print_through(redact)


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
    for one in (value, value.strip()):
        if len(one) >= (_WORD if one.isalpha() else _LEAST):
            yield from (one, quote(one, errors="replace"), quote(one, safe="", errors="replace"))
            yield from (quote_plus(one, errors="replace"), repr(one)[1:-1], json.dumps(one)[1:-1])
