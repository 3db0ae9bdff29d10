# SPDX-License-Identifier: Apache-2.0
"""Prints every public name: of the two doors, of their classes, and of the options (`make public-names`)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module

from forebay.framework.runtime.host_options import HostOptions
from forebay.options import class_options
from forebay.registry import BUILT_INS, default_registry

DOORS = ("forebay", "forebay.changelog", "forebay.index", "forebay.keys", "forebay.testkit")
_BUILT_IN = ("FileSource", "HybridSource", "KafkaSource", "RateSource")  # public by their options and as a `Source`


def public_names() -> list[str]:
    """Return a line for each public name; a callable has its parameters, and `=` after those that have a default."""
    lines = [line for door in DOORS for line in _of_door(door)]
    for entry in BUILT_INS:
        lines += [
            f"option {entry.name} {spec.shown_name}" for spec in class_options(default_registry.lookup(entry.name))
        ]
    lines += [f"option * {spec.shown_name}" for spec in class_options(HostOptions)]
    return sorted(set(lines))


def _of_door(door: str) -> Iterator[str]:
    module = import_module(door)
    for name in module.__all__:
        found = getattr(module, name)
        if inspect.isclass(found):
            yield f"{door}.{name}"
            if name not in _BUILT_IN:
                yield from _of_class(f"{door}.{name}", found)
        elif inspect.isfunction(found):
            yield f"{door}.{name}{_parameters(found)}"
        else:
            yield f"{door}.{name}"


def _of_class(label: str, cls: type) -> Iterator[str]:
    ours = [base for base in cls.__mro__ if base.__module__.startswith("forebay")]
    for name in sorted({name for base in ours for name in (*vars(base), *vars(base).get("__annotations__", ()))}):
        if name.startswith("_"):
            continue
        found = inspect.getattr_static(cls, name, None)
        method = found.__func__ if isinstance(found, (classmethod, staticmethod)) else found
        yield f"{label}.{name}{_parameters(method) if inspect.isfunction(method) else ''}"


def _parameters(function: object) -> str:
    shown, after_star = [], False
    for one in inspect.signature(function).parameters.values():  # type: ignore[arg-type]
        if one.kind is one.KEYWORD_ONLY and not after_star:
            shown.append("*")
        after_star = after_star or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        prefix = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        shown.append(f"{prefix}{one.name}{'' if one.default is one.empty else '='}")
    return f"({', '.join(shown)})"


if __name__ == "__main__":
    print("\n".join(public_names()))  # noqa: T201 - the output of `make public-names`
