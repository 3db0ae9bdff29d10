# SPDX-License-Identifier: Apache-2.0
"""What the annotations of a class mean, wherever it was written: module, notebook cell, function; text or not."""

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

# Names that annotations may use although the module of the class is not what it was: on a worker, `__main__` is
# another program than the notebook.
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
    """Return the annotations written in the body of this class, none of its bases'."""
    return inspect.get_annotations(cls)


def resolved(base: type, annotation: object, extra: Mapping[str, object] | None = None) -> Any:
    """Return the type an annotation in the body of `base` means, `Annotated` and `ClassVar` kept.

    Args:
        base: The class with the annotation.
        annotation: A type, or text.
        extra: More names, preferred to those of the module.

    Raises:
        Exception: Whatever evaluating the annotation raises: NameError above all.
    """
    scope = {**_WELL_KNOWN, **_names_around(base), **(extra or {})}
    # In its body a class sees its own attributes. Values with the name of a type (`date: date = …`) do not count.
    scope.update({name: value for name, value in vars(base).items() if isinstance(value, type)})
    holder = type(base.__name__, (), {"__annotations__": {"it": annotation}})
    return typing.get_type_hints(holder, scope, {}, include_extras=True)["it"]


def _names_around(base: type) -> dict[str, object]:
    """The names its methods see: they know their globals and enclosing variables also where the module does not."""
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
    """Put types in place of the text annotations of a class, as far as they are known now. Demands nothing.

    Called by a base class in `__init_subclass__`, before `dataclass`: only then can the local names of a function
    around the class be seen, and a class that is pickled by value takes the types along. What cannot be resolved stays
    text, for `class_options` to complain about.
    """
    annotations = dict(own_annotations(cls))
    nearby: dict[str, object] | None = None
    for name, annotation in annotations.items():
        if isinstance(annotation, str):
            nearby = _names_in_callers(cls) if nearby is None else nearby
            try:
                annotations[name] = resolved(cls, annotation, nearby)
            except Exception:  # noqa: BLE001, S112 - an annotation is code; `class_options` tells what is wrong with it
                continue
    if nearby is not None:
        cls.__annotations__ = annotations


def _names_in_callers(cls: type) -> dict[str, object]:
    """The local names of the functions that are making the class, the innermost first."""
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
    """Return what the class's docstring says about each name under "Args:", "Attributes:" or "Options:"."""
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
