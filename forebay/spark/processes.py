# SPDX-License-Identifier: Apache-2.0
"""What keeps Spark's Python processes correct and fast: pickled sources, profiles, garbage collection."""

from __future__ import annotations

import functools
import gc
import os
import pickle
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from pyspark import accumulators, cloudpickle

from forebay.errors import ConfigurationError
from forebay.framework.runtime.connector_errors import MISSING_MODULE, wrap_errors

# -- Pickles sources for Spark's processes, even from notebook cells and modules that workers cannot import.


_cloudpickle: Any = cloudpickle
"""pyspark's cloudpickle, without types."""


def dumps(value: object, source: str) -> bytes:
    """Pickle a source or its class. Called in the user's process.

    Objects of installed packages are pickled by reference. Objects of the user's own modules are pickled by value,
    because workers may not have these modules; if a module cannot be pickled (for example, because it holds a lock),
    workers must import it.

    Raises:
        ConfigurationError: The value cannot be pickled.
    """
    local = _local_modules()
    problem: Exception | None = None
    for modules in (local, _own_modules(value, local), ()):
        try:
            with _by_value(modules):
                return bytes(_cloudpickle.dumps(value, protocol=5))
        except Exception as error:  # noqa: BLE001 - pickling runs code of the user
            problem = problem or error
    with wrap_errors(source, "pickling"):  # the error may contain a secret
        raise ConfigurationError(
            f"the source cannot be sent to Spark's workers: {type(problem).__name__}: {problem}",
            source=source,
            advice="create clients in a function with @forebay.cached, and open files and connections inside read()",
        ) from problem


def loads(payload: bytes, source: str) -> Any:  # noqa: ANN401 - any type was pickled
    """Unpickle the result of `dumps`. Called in the processes of Spark.

    Raises:
        ConfigurationError: A module cannot be imported in this process.
    """
    try:
        return pickle.loads(payload)  # noqa: S301 - written by `dumps` in the user's own session
    except ImportError as error:
        raise ConfigurationError(
            f"the source needs a module that Spark's workers cannot import: {error}",
            source=source,
            advice=MISSING_MODULE,
        ) from error


@contextmanager
def _by_value(modules: Sequence[ModuleType]) -> Iterator[None]:
    registered = _cloudpickle.list_registry_pickle_by_value()
    new = [module for module in modules if module.__name__ not in registered]
    for module in new:
        _cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in new:
            _cloudpickle.unregister_pickle_by_value(module)


def _own_modules(value: object, local: Sequence[ModuleType]) -> list[ModuleType]:
    cls = value if isinstance(value, type) else type(value)
    names = {base.__module__ for base in cls.__mro__}
    return [module for module in local if module.__name__ in names]


def _local_modules() -> list[ModuleType]:
    """Return the loaded modules that are neither installed nor part of Python."""
    installed = _installed_roots()
    local = []
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        root = name.partition(".")[0]
        if (
            isinstance(module, ModuleType)
            and module.__name__ == name
            and isinstance(path, str)
            and root not in {"__main__", "forebay", "pyspark", "py4j"}
            and not os.path.abspath(path).startswith(installed)
        ):
            local.append(module)
    return local


def _installed_roots() -> tuple[str, ...]:
    """Return the beginnings of the paths of installed modules: texts, since a process has thousands of modules."""
    paths = [path for name, path in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib"))]
    paths += site.getsitepackages()
    if site.ENABLE_USER_SITE:
        paths.append(site.getusersitepackages())
    return tuple(os.path.join(path, "") for path in {*paths, *map(os.path.realpath, paths)})


# -- Lets declarative pipelines read Python sources: a workaround for a bug of PySpark 4.2 and 4.3.


_UTILS: Final = "pyspark.sql.worker.utils"
_SEND: Final = "send_accumulator_updates"


def skip_empty_profiles() -> None:
    """Make this planner process report no empty profiles. Called when a planner process imports the data source.

    Each planner process of Spark reports two profiles of its Python code, which are empty unless the session profiles
    data sources. Spark Connect sends them to the client, and `spark-pipelines run` accepts no such message: it fails
    with `UNKNOWN_RESPONSE` after a run in which every table was written. In other processes this does nothing.
    """
    utils: Any = sys.modules.get(_UTILS)
    send = getattr(utils, _SEND, None)
    registry: dict[int, Any] | None = getattr(accumulators, "_accumulatorRegistry", None)
    if send is None or registry is None or hasattr(send, "__wrapped__"):
        return

    @functools.wraps(send)
    def send_profiles(outfile: object) -> None:
        # Spark's own accumulators have negative ids.
        for own in [
            number
            for number, accumulator in registry.items()
            if number < 0 and not getattr(accumulator, "_value", True)
        ]:
            del registry[own]
        send(outfile)

    setattr(utils, _SEND, send_profiles)


# -- Keeps Spark's workers from searching the imported modules for garbage after each task.


_DAEMON: Final = "pyspark.daemon"

_frozen = 0
"""The number of imported modules when this process last froze its objects."""


def freeze_modules() -> None:
    """Exempt the objects of this process from garbage collection, if modules were imported since the last call.

    Called on the main thread of planner processes and tasks, before they work. Spark's daemon collects the garbage of a
    worker after each task. With pyarrow, pandas and forebay, that visits 84,000 objects of modules: 35 ms of CPU time
    for each task and each call of a planner process. Frozen objects are still freed when nothing refers to them; only
    reference cycles among them stay. Does nothing in other processes, which belong to the user.
    """
    global _frozen  # noqa: PLW0603 - the process has one set of modules
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if getattr(spec, "name", None) == _DAEMON and len(sys.modules) > _frozen:
        gc.freeze()
        _frozen = len(sys.modules)
