# SPDX-License-Identifier: Apache-2.0
"""The source that a command names: a format, or `MODULE:Class`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Annotated

import typer

from forebay.errors import ConfigurationError
from forebay.framework.runtime.connector_errors import wrap_errors
from forebay.framework.source import Source
from forebay.inspection.describe import source_class

Target = Annotated[
    str,
    typer.Argument(help="The name of a format, such as forebay_files, or MODULE:Class.", show_default=False),
]


def target_source(target: str, given: Mapping[str, str]) -> Source:
    """Return the source of a format name or of `MODULE:Class`, with options as text.

    Raises:
        ConfigurationError: There is no such source, or an option is unknown, missing or invalid.
        ForebayError: The source's own `check()` failed.
    """
    found = target_class(target)
    with wrap_errors(found.name, "check()"):
        return found.from_options(given)


def target_class(target: str) -> type[Source]:
    """Return the class of a format name or of `MODULE:Class`; modules are also looked for in the current directory.

    Raises:
        ConfigurationError: There is no such source.
    """
    if ":" not in target:
        return source_class(target)
    found = imported(target)
    if not (isinstance(found, type) and issubclass(found, Source)):
        raise ConfigurationError(f"{target} is not a source class", advice="derive it from forebay.Source")
    return found


def imported(target: str) -> object:
    """Return what `MODULE:NAME` names; modules are also looked for in the current directory.

    Raises:
        ConfigurationError: There is no such name, or the module cannot be imported.
    """
    module, _, name = target.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # a module may raise anything when it is imported
        raise ConfigurationError(
            f"{target} cannot be imported: {error}",
            advice="write MODULE:Class, such as shop.orders:Orders, and run it where Python can import the module",
        ) from error
