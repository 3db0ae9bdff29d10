# SPDX-License-Identifier: Apache-2.0
"""The formats that this environment offers, with the options of each."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.errors import ForebayError
from forebay.inspection.describe import describe
from forebay.inspection.tables import text_table
from forebay.registry import default_registry


@dataclass(frozen=True)
class InstalledSource:
    """A format that Spark and the command line find by name.

    Args:
        name: The format name.
        target: The class: `package.module:Class`.
        origin: Where it comes from: "built into forebay", "the package shop 1.2".
        summary: The first line of the class's docstring.
        options: Rows of name, type, default ("required" if there is none), and meaning.
        problem: Why the class cannot be used here, with the next step; empty if it can.
    """

    name: str
    target: str
    origin: str
    summary: str = ""
    options: tuple[tuple[str, str, str, str], ...] = ()
    problem: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON values."""
        options = [dict(zip(("name", "type", "default", "meaning"), row, strict=True)) for row in self.options]
        fields = {"name": self.name, "class": self.target, "origin": self.origin, "summary": self.summary}
        return {**fields, "options": options, "problem": self.problem or None}


def installed_sources() -> list[InstalledSource]:
    """Return every installed format, sorted by name. A package that cannot be loaded is listed with its problem."""
    found = []
    for entry in default_registry.entries():
        try:
            shown = describe(entry.name)
        except ForebayError as error:
            found.append(InstalledSource(entry.name, entry.path, entry.origin, problem=str(error)))
        else:
            found.append(InstalledSource(entry.name, entry.path, entry.origin, shown.summary, shown.options))
    return found


def sources_table(sources: list[InstalledSource]) -> str:
    """Return a table of the formats; the problems follow it."""
    rows = [(one.name, one.origin, "cannot be loaded" if one.problem else one.summary) for one in sources]
    problems = [f"\n{one.name}: {one.problem}" for one in sources if one.problem]
    return "\n".join([text_table(("format", "from", "what it reads"), rows), *problems])
