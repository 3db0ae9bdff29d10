# SPDX-License-Identifier: Apache-2.0
"""Sources by the name of their format and texts as options, as a command line gives them."""

from __future__ import annotations

from collections.abc import Mapping

from forebay.errors import ConfigurationError
from forebay.framework.runtime.connector_errors import explained
from forebay.framework.source import Source
from forebay.registry import default_registry


def source_class(name: str) -> type[Source]:
    """Return the class of a format. Called by the command line.

    Raises:
        ConfigurationError: No format has the name, or what has it is no source.
    """
    found = default_registry.lookup(name)
    if not issubclass(found, Source):
        raise ConfigurationError(f"{found!r} is no source", source=name, advice="derive it from forebay.Source")
    return found


def named_source(name: str, options: Mapping[str, str]) -> Source:
    """Return a source made of texts. Called by the command line.

    Raises:
        ConfigurationError: No format has the name, or an option is unknown, missing or wrong.
        ForebayError: What the source's own check raised.
    """
    found = source_class(name)
    with explained(found.name, "check()"):
        return found.from_options(options)
