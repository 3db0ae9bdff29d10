# SPDX-License-Identifier: Apache-2.0
"""What several commands take, and how they say something."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from forebay.inspection.tables import printable

Options = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--option",
        metavar="NAME=VALUE",
        help="An option of the source; may be repeated. Best give secrets as env:NAME or file:/path.",
        show_default=False,
    ),
]


def option_texts(given: Iterable[str] | None) -> dict[str, str]:
    """Return options by name.

    Raises:
        typer.BadParameter: One has no `=`, or comes twice. Its value is not repeated: it may be secret.
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
    """Write to the terminal; what would control it, such as escape characters in the name of a file, is escaped."""
    typer.echo(printable(text, lines=True), err=err)
