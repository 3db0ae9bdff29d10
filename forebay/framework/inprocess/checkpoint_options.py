# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint keeps of a source's options, and what a restart with other ones is told."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from forebay.errors import ConfigurationError
from forebay.framework.source import Source
from forebay.options import (
    NONE_TEXT,
    REDACTED,
    OptionSpec,
    class_options,
    format_options,
    mask_values,
    option_values,
)

_log = logging.getLogger(__name__)

# Addresses may carry what is secret: a password before the host, a token in the query.
_PASSWORD = re.compile(r"(://[^/\s:@]*):[^/\s@]*@")
_TOKEN = re.compile(r"([?&][^=&\s]*(?:secret|passw|token|credential|key|sig)[^=&\s]*)=[^&\s]*", re.IGNORECASE)


def fixed_options(source: Source) -> dict[str, str]:
    """Return the options that a restart may not change as texts, without secrets and what no text means."""
    specs = class_options(type(source))
    return _texts(specs, (spec for spec in specs if not spec.may_change), option_values(source))


def changeable_options(source: Source) -> dict[str, str]:
    """Return the options that a restart may change as texts, without secrets and what no text means."""
    return {name: _redacted(text) for name, text in _changeable(source, option_values(source)).items()}


def warn_of_changes(source: Source, old: Mapping[str, str]) -> None:
    """Log one warning that names the changeable options that have changed, if any.

    Called in the consumer's thread when a run goes on from a checkpoint. An option that is not there has its default.

    Args:
        source: As it is now.
        old: The texts in the checkpoint, from `changeable_options`.
    """
    specs = class_options(type(source))
    fresh: dict[str, Any] = {}
    for spec in specs:
        with suppress(ConfigurationError):  # it is required, or its own default does not fit
            fresh[spec.python_name] = spec.fresh_default()
    defaults = {name: _redacted(text) for name, text in _changeable(source, fresh).items()}
    before, after = {**defaults, **old}, {**defaults, **changeable_options(source)}
    changed = [
        f"{name} (was {_shown(before, name)}, is now {_shown(after, name)})"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
        # Checkpoints were written that leave out such a None.
        and not (name not in old and after.get(name) == NONE_TEXT)
    ]
    if changed:
        _log.warning(
            "%s: options changed since the checkpoint: %s; splits already known keep their progress, and finished ones "
            "are not read again: to read everything anew, give another checkpoint directory",
            source.name,
            ", ".join(changed),
        )


def _shown(texts: Mapping[str, str], name: str) -> str:
    text = texts.get(name, "not set")
    return "none" if text == NONE_TEXT else mask_values(text)


def _changeable(source: Source, values: Mapping[str, Any]) -> dict[str, str]:
    specs = class_options(type(source))
    return _texts(specs, (spec for spec in specs if spec.may_change and not spec.kind.holds_secret), values)


def _texts(all_specs: tuple[OptionSpec, ...], some: Iterable[OptionSpec], values: Mapping[str, Any]) -> dict[str, str]:
    """Write each option alone, so that one that no text means leaves the others."""
    texts: dict[str, str] = {}
    for spec in some:
        if spec.python_name not in values:
            continue
        try:
            written = format_options(all_specs, {spec.python_name: values[spec.python_name]}, nones=True)
            "".join(written.values()).encode()
        except (ConfigurationError, ValueError, TypeError, AttributeError) as error:
            # The value may be secret, and so may what the error says.
            _log.debug("the option %s is in no checkpoint: %s", spec.name, type(error).__name__)
            continue
        texts |= written
    return texts


def _redacted(text: str) -> str:
    return _TOKEN.sub(rf"\1={REDACTED}", _PASSWORD.sub(rf"\1:{REDACTED}@", text))
