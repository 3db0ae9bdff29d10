# SPDX-License-Identifier: Apache-2.0
"""Arguments and output that several commands share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from forebay.errors import printable

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


def option_texts(given: Iterable[str] | None) -> dict[str, str]:
    """Parse the `name=value` texts of `--option` into a dictionary.

    Raises:
        typer.BadParameter: A text has no `=`, or a name is repeated. The error does not show the value, which may be
        secret.
    """
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter("an option is written NAME=VALUE", param_hint="-o")
        if name in found:
            raise typer.BadParameter(f"{name} is given twice", param_hint="-o")
        found[name] = value
    return found


def say(text: str, *, err: bool = False) -> None:
    """Print a text with control characters escaped, to standard output or, with `err`, to standard error."""
    typer.echo(printable(text, lines=True), err=err)
