# SPDX-License-Identifier: Apache-2.0
"""Arguments and output that several commands share."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated

import typer

from forebay.errors import ConfigurationError, ForebayError, printable
from forebay.framework.runtime.connector_errors import wrap_errors
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.inspection.describe import source_class
from forebay.options.parsing import sort_out
from forebay.options.secret import Secret
from forebay.options.spec import class_options

# -- The source that a command names: a format, or `MODULE:Class`.


Target = Annotated[
    str,
    typer.Argument(help="The name of a format, such as forebay_files, or MODULE:Class.", show_default=False),
]


def target_source(target: str, options: Mapping[str, str]) -> Source:
    """Return the source of a format name or of `MODULE:Class`, with options as text.

    Raises:
        ConfigurationError: There is no such source, or an option is unknown, missing, invalid or one of Spark's reads.
        ForebayError: The source's own `check()` failed.
    """
    cls = target_class(target)
    others = {name: options[name] for name in sort_out(class_options(cls), options)[1]}
    if host_options := sort_out(class_options(HostOptions), others)[0]:
        name = next(iter(host_options.values()))[0].shown
        raise ConfigurationError(
            f"{name} is an option of reads on Spark, and this command reads without Spark",
            source=cls.name,
            option=name,
            advice="leave it out, or try it in a read on Spark",
        )
    with wrap_errors(cls.name, "check()"):
        return cls.from_options(options)


def target_class(target: str) -> type[Source]:
    """Return the class of a format name or of `MODULE:Class`; modules are also looked for in the current directory.

    Raises:
        ConfigurationError: There is no such source.
    """
    if ":" not in target:
        return source_class(target)
    cls = imported(target)
    if not (isinstance(cls, type) and issubclass(cls, Source)):
        raise ConfigurationError(f"{target} is not a source class", advice="derive it from forebay.Source")
    return cls


def imported(target: str) -> object:
    """Return what `MODULE:NAME` names; modules are also looked for in the current directory.

    Raises:
        ConfigurationError: There is no such name, or the module cannot be imported.
    """
    module, _, name = target.partition(":")
    if not name:
        raise ConfigurationError(
            f"{target!r} names no object of a module", advice="write MODULE:NAME, such as shop.orders:Orders"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except ForebayError:  # what the module defines is refused, which says why
        raise
    except Exception as error:  # a module may raise anything when it is imported
        raise ConfigurationError(
            f"{target} cannot be imported: {error}",
            advice="write MODULE:NAME, such as shop.orders:Orders, and run it where Python can import the module",
        ) from error


Options = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--option",
        metavar="NAME=VALUE",
        help="An option of the source; may be repeated. Give secrets as env:NAME or file:/path.",
        show_default=False,
    ),
]


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def option_texts(assignments: Iterable[str] | None) -> dict[str, str]:
    """Parse the `name=value` texts of `--option` into a dictionary.

    Raises:
        typer.BadParameter: A text has no `=`, or a name is repeated. The error does not show the value, which may be
        secret.
    """
    options: dict[str, str] = {}
    for text in assignments or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter("an option is written NAME=VALUE", param_hint="-o")
        if name in options:
            raise typer.BadParameter(f"{name} is given twice", param_hint="-o")
        options[name] = value
    return options


def storage_settings(assignments: Iterable[str] | None, prefix: str) -> dict[str, Secret]:
    """Return settings of S3 by name; they may be written with the prefix that errors show, such as `stateStorage.`."""
    texts = option_texts(text.removeprefix(prefix) for text in assignments or ())
    return {name: Secret(text) for name, text in texts.items()}


def say(text: str, *, err: bool = False) -> None:
    """Print a text with control characters escaped, to standard output or, with `err`, to standard error."""
    typer.echo(printable(text, lines=True), err=err)
