# SPDX-License-Identifier: Apache-2.0
"""Imports the public names of a module on first use (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Final

from forebay.errors import ConfigurationError

_TITLES: Final = {"numpy": "NumPy", "pyspark": "PySpark"}


def lazy_names(
    door: str, modules: Mapping[str, str], names: Sequence[str], extras: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a module.

    Args:
        door: The full name of the module.
        modules: The module that defines each lazy name. A name may be a module of the package `door` itself.
        names: All public names, also those that are not lazy.
        extras: The optional packages that the lazy names need, each with the extras of forebay that have it.
    """

    def find(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {door!r} has no attribute {name!r}")
        try:
            module = import_module(modules[name])
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in extras:
                raise
            raise ConfigurationError(
                f"{door}.{name} needs {_TITLES[package]}, which is not installed",
                advice=f'pip install "forebay[{extras[package]}]"',
            ) from error
        return module if modules[name] == f"{door}.{name}" else getattr(module, name)

    return find, lambda: list(names)
