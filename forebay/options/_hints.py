# SPDX-License-Identifier: Apache-2.0
"""Resolves the annotations of a class to types, even if the class was defined in a notebook cell or in a function."""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Optional, Union

from forebay.options.quantities import ByteSize, Duration
from forebay.options.secret import Secret

# Names that every annotation may use: on a worker, `__main__` is not the program that defined the class.
_WELL_KNOWN: Final[Mapping[str, object]] = {
    "Annotated": Annotated,
    "Any": Any,
    "ByteSize": ByteSize,
    "ClassVar": ClassVar,
    "Duration": Duration,
    "Enum": Enum,
    "Literal": Literal,
    "Optional": Optional,
    "Path": Path,
    "Secret": Secret,
    "Union": Union,
    "date": date,
    "datetime": datetime,
    "timedelta": timedelta,
    "typing": typing,
}


def own_annotations(cls: type) -> Mapping[str, Any]:
    """Return the annotations in the body of a class, without those of its base classes."""
    return inspect.get_annotations(cls)


def resolved(base: type, annotation: object, extra: Mapping[str, object] | None = None) -> Any:
    """Return the type that an annotation means, including `Annotated` and `ClassVar`.

    Args:
        base: The class in whose body the annotation is.
        annotation: The annotation, which may be a text.
        extra: Additional names that a text annotation may use.

    Raises:
        Exception: Evaluating the annotation failed, mostly with NameError.
    """
    scope = {**_WELL_KNOWN, **_names_around(base), **(extra or {})}
    # A class body sees its own attributes. Only types count, because of `date: date = …`.
    scope.update({name: value for name, value in vars(base).items() if isinstance(value, type)})
    holder = type(base.__name__, (), {"__annotations__": {"it": annotation}})
    return typing.get_type_hints(holder, scope, {}, include_extras=True)["it"]


def _names_around(base: type) -> dict[str, object]:
    """Return the names that the methods of a class can see: globals, and variables of enclosing functions."""
    names = dict(vars(sys.modules[base.__module__])) if base.__module__ in sys.modules else {}
    for method in vars(base).values():
        if isinstance(method, types.FunctionType):
            names.update(method.__globals__)
    for method in vars(base).values():
        if isinstance(method, types.FunctionType):
            names.update(_enclosed(method))
    return names


def _enclosed(method: types.FunctionType) -> dict[str, object]:
    found = {}
    for name, cell in zip(method.__code__.co_freevars, method.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # the enclosing function has not assigned it yet
            continue
    return found


def resolve_annotations(cls: type) -> None:
    """Replace text annotations of a class by types, where they can be resolved now.

    Called by a base class in `__init_subclass__`, before `dataclass`: only then are the local names of an enclosing
    function visible, and a class that is pickled by value contains the types. An annotation that cannot be resolved
    stays a text; `class_options` reports it.
    """
    annotations = dict(own_annotations(cls))
    nearby: dict[str, object] | None = None
    for name, annotation in annotations.items():
        if isinstance(annotation, str):
            nearby = _names_in_callers(cls) if nearby is None else nearby
            try:
                annotations[name] = resolved(cls, annotation, nearby)
            except Exception:  # noqa: BLE001, S112 - an annotation is code; `class_options` reports the error
                continue
    if nearby is not None:
        cls.__annotations__ = annotations


def _names_in_callers(cls: type) -> dict[str, object]:
    """Return the local variables of the functions around the class definition.

    Those of inner functions take precedence.
    """
    names: dict[str, object] = {}
    frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001 - `inspect.stack` does the same, and reads source files
    while frame is not None:
        if frame.f_globals.get("__name__") == cls.__module__ and frame.f_locals is not frame.f_globals:
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names


_SECTION = re.compile(r"\s*(Args|Attributes|Options):\s*")
_ENTRY = re.compile(r"(\s+)(\w+)(?: \([^)]*\))?:\s+(.*)")


def documented(cls: type) -> Mapping[str, str]:
    """Return the descriptions of attributes in a class's docstring, under "Args:", "Attributes:" or "Options:"."""
    found: dict[str, str] = {}
    section, indent, name = False, 0, ""
    for line in inspect.cleandoc(vars(cls).get("__doc__") or "").splitlines():
        entry = _ENTRY.fullmatch(line)
        if _SECTION.fullmatch(line):
            section, indent, name = True, 0, ""
        elif line and not line.startswith(" "):
            section = False
        elif section and entry and len(entry[1]) <= (indent or len(entry[1])):
            indent, name = len(entry[1]), entry[2]
            found[name] = entry[3].strip()
        elif section and name and line.strip():
            found[name] += " " + line.strip()
    return found
