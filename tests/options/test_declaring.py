# SPDX-License-Identifier: Apache-2.0
"""The options of a class, from modules, notebook cells and functions."""

from __future__ import annotations

import dataclasses
import gc
import subprocess
import sys
import weakref
from collections.abc import Mapping
from dataclasses import InitVar, dataclass
from datetime import datetime
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, dataclass_transform

import pytest

from forebay.errors import ConfigurationError, ContractError
from forebay.options import (
    REQUIRED,
    ByteSize,
    Duration,
    OptionSpec,
    Secret,
    camel_case,
    class_options,
    coerce_fields,
    merge_specs,
    option,
    resolve_annotations,
)


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Base:
    """A base class like those of the framework."""

    name: ClassVar[str] = "base"

    def __init_subclass__(cls, *, plain: bool = False) -> None:
        super().__init_subclass__()
        resolve_annotations(cls)
        if not plain:
            dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        coerce_fields(self)

    @property
    def bounded(self) -> bool:
        return True

    def schema(self) -> str:
        return "schema"


class Orders(Base):
    """Orders of a shop.

    Args:
        start: the first order,
            by number
        mode (str): how
    """

    bounded = False
    name = "orders"

    url: str = option(doc="base address")
    token: Secret = option(doc="API token")
    start: int = 10
    mode: Literal["a", "b"] = "a"
    poll_interval: Duration = option("30s", doc="pause")
    max_bytes: ByteSize = option("128m")
    kafka: dict[str, str] = option(prefix="kafka.", doc="passed on")
    retries: int = option(3, name="fetchOffset.numRetries", aliases=("fetchoffset.retries",), may_change=False)
    noted: Annotated[int | None, "a note"] = None
    tables: list[str] = option(default_factory=lambda: ["a"])
    limit: ClassVar[int] = 5


def spec(cls: type, name: str) -> OptionSpec:
    return {one.python_name: one for one in class_options(cls)}[name]


def test_the_annotated_attributes_are_the_options_in_their_order():
    assert [one.python_name for one in class_options(Orders)] == [
        "url", "token", "start", "mode", "poll_interval", "max_bytes", "kafka", "retries", "noted", "tables",
    ]  # fmt: skip


def test_a_spec_knows_what_was_declared():
    retries = spec(Orders, "retries")
    assert (retries.name, retries.aliases, retries.may_change) == (
        "fetchOffset.numRetries",
        ("fetchoffset.retries",),
        False,
    )
    assert (retries.type, retries.default, retries.owner, retries.secret) == (int, 3, "Orders", None)
    assert spec(Orders, "url").default is REQUIRED
    assert spec(Orders, "poll_interval").fresh_default() == Duration("30s")
    assert spec(Orders, "kafka").prefix == "kafka."
    assert [one.python_name for one in class_options(Orders) if one.required] == ["url", "token"]


def test_docs_come_from_option_from_a_note_or_from_the_docstring():
    docs = {one.python_name: one.doc for one in class_options(Orders)}
    assert docs["url"] == "base address"
    assert docs["noted"] == "a note"
    assert docs["start"] == "the first order, by number"
    assert docs["mode"] == "how"


@pytest.mark.parametrize(
    ("python", "spark"),
    [("url", "url"), ("poll_interval", "pollInterval"), ("from_", "from"), ("a__b_2", "aB2"), ("aB", "aB")],
)
def test_spark_names_are_camel_case(python, spark):
    assert camel_case(python) == spark


def test_an_instance_gets_typed_values_from_texts_and_copies_of_mutable_ones():
    given = {"a": "b"}
    texts: dict[str, Any] = {"token": "env:T", "poll_interval": "5m", "max_bytes": "1k", "start": "7"}
    orders = Orders(url="x", kafka=given, **texts)
    assert (orders.poll_interval, orders.max_bytes, orders.start) == (Duration("5m"), 1024, 7)
    assert orders.token == Secret("env:T")
    given["c"] = "d"
    assert orders.kafka == {"a": "b"}
    assert Orders(url="x", token=Secret("t")).tables is not Orders(url="x", token=Secret("t")).tables
    with pytest.raises(ConfigurationError, match=r"max_bytes.*size") as caught:
        Orders(url="x", token=Secret("t"), max_bytes="much")  # type: ignore[arg-type]
    assert (caught.value.option, caught.value.source) == ("max_bytes", "Orders")


def test_a_subclass_adds_options_and_changes_defaults():
    class More(Orders):
        start: int = 20
        extra: float = 0.5

    assert spec(More, "start").default == 20
    assert spec(More, "start").owner == "More"
    assert [one.python_name for one in class_options(More)][-1] == "extra"
    assert spec(Orders, "start").default == 10


def test_a_class_need_not_be_a_dataclass():
    class Plain:
        a: int = option(1, aliases="b")
        c: str
        d: int = 5

    assert [(one.python_name, one.default, one.aliases) for one in class_options(Plain)] == [
        ("a", 1, ("b",)),
        ("c", REQUIRED, ()),
        ("d", 5, ()),
    ]


def test_fields_outside_the_constructor_and_keyword_markers_are_no_options():
    @dataclass
    class Marked:
        a: int
        _: dataclasses.KW_ONLY
        b: int = 1
        c: int = dataclasses.field(default=2, init=False)

    assert [one.python_name for one in class_options(Marked)] == ["a", "b"]


def in_a_function() -> type:
    class Local(Base):
        class Size(Enum):
            BIG = "big"

        size: Size = Size.BIG
        sizes: dict[str, Size] = option(default_factory=dict)

    return Local


def test_types_of_the_class_itself_are_found():
    local = in_a_function()
    assert spec(local, "size").convert("big").value == "big"
    assert spec(local, "sizes").convert('{"a": "big"}')["a"].value == "big"


def test_a_type_of_the_function_around_is_refused_by_name():
    class Colour(Enum):
        RED = "red"

    class Local(Base):
        colour: Colour = Colour.RED

    with pytest.raises(ContractError, match="'Colour' of 'colour' cannot be resolved") as caught:
        class_options(Local)
    assert "at the top level of the module" in str(caught.value.advice)


def test_without_a_base_class_types_in_closures_are_found():
    class Colour(Enum):
        RED = "red"

    class Local:
        colour: Colour = Colour.RED

        def paint(self) -> str:
            return Colour.RED.value

    assert spec(Local, "colour").default is Colour.RED


def test_an_option_may_have_the_name_of_its_type():
    class Dated(Base):
        datetime: datetime = datetime(2024, 1, 1)
        path: Path | None = None

    assert spec(Dated, "datetime").convert("2025-01-01").year == 2025


def test_resolving_demands_nothing_and_asking_later_does():
    class Unknown(Base):
        a: Nowhere = option(doc="x")  # type: ignore[name-defined]  # noqa: F821
        b: int = 1

    assert Unknown.__annotations__ == {"a": "Nowhere", "b": int}
    with pytest.raises(ContractError, match="'Nowhere'") as caught:
        class_options(Unknown)
    assert (caught.value.rule, caught.value.source) == ("OPT-1", "Unknown")


CELL = """\
{future}
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Literal
from forebay.options import Secret, coerce_fields, option, resolve_annotations
class Base:
    def __init_subclass__(cls):
        resolve_annotations(cls)
        dataclass(frozen=True, kw_only=True)(cls)
    def __post_init__(self):
        coerce_fields(self)
class Level(Enum):
    LOW = "low"
class Cell(Base):
    kind: ClassVar[str] = "cell"
    url: str = option(doc="where")
    level: Level = Level.LOW
    mode: Literal["a", "b"] = option("a", may_change=False)
    kafka: dict[str, str] = option(prefix="kafka.")
    token: Secret | None = None
"""

WORKER = """\
import pickle
from forebay.options import class_options, parse_options
cls, one = pickle.loads({pickled!r})
specs = {{spec.python_name: spec for spec in class_options(cls)}}
assert list(specs) == ["url", "level", "mode", "kafka", "token"], list(specs)
assert [name for name in specs if specs[name].required] == ["url"]
assert not specs["mode"].may_change and specs["url"].doc == "where"
again = cls(**parse_options(specs.values(), {{"URL": "x", "level": "LOW"}}, source="cell"))
assert again == one, (again, one)
"""


def run_notebook(cell: str, then: str) -> bytes:
    """Run a cell as a notebook does: its names are those of `__main__`."""
    code = f"import sys; main = vars(sys.modules['__main__']); exec(compile({cell!r}, 'cell', 'exec'), main); {then}"
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, check=True).stdout


@pytest.mark.parametrize("future", ["from __future__ import annotations", ""])
def test_a_notebook_class_works_after_pickling_by_value_in_a_process_without_the_notebook(future):
    import_module("pyspark.cloudpickle")
    pickled = run_notebook(
        CELL.format(future=future),
        "from pyspark import cloudpickle; "
        "sys.stdout.buffer.write(cloudpickle.dumps((Cell, Cell(url='x', level='low'))))",
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", WORKER.format(pickled=pickled)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


MISTAKES: list[tuple[str, Mapping[str, Any], Mapping[str, Any], str, str]] = [
    ("a type that is no text", {"a": complex}, {}, "OPT-1", "complex"),
    ("any type", {"a": Any}, {}, "OPT-1", "Any"),
    ("a bare list", {"a": list}, {}, "OPT-1", "list"),
    ("a fixed tuple", {"a": tuple[int, str]}, {}, "OPT-1", "tuple"),
    ("a choice written twice", {"a": Literal[1, "1"]}, {}, "OPT-1", "same"),
    ("an enum of nothing", {"a": Enum("Nothing", [])}, {}, "OPT-1", "no values to choose"),
    ("a private name", {"_a": int}, {"_a": 1}, "OPT-1", "'_a'"),
    ("an InitVar", {"a": InitVar[int]}, {}, "OPT-1", "'a'"),
    ("a prefix without a dict", {"a": str}, {"a": option(prefix="a.")}, "OPT-1", "dict"),
    ("a prefix with keys that are no texts", {"a": dict[int, str]}, {"a": option(prefix="a.")}, "OPT-1", "dict"),
    ("an empty prefix without a dict", {"a": str}, {"a": option(prefix="")}, "OPT-1", "dict"),
    ("a default of another type", {"a": int}, {"a": "ten"}, "OPT-2", "'ten'"),
    ("None for a type without None", {"a": int}, {"a": None}, "OPT-2", "None"),
    ("True for an int", {"a": int}, {"a": True}, "OPT-2", "True"),
    ("a choice that is none", {"a": Literal["x", "y"]}, {"a": "z"}, "OPT-2", "'z'"),
    ("names that differ in case", {"ab": int, "aB": int}, {}, "OPT-3", "called ab"),
    ("a Spark name that is a Python name", {"a_b": int, "aB": int}, {}, "OPT-3", "called ab"),
    ("an alias that is a name", {"a": int, "b": int}, {"b": option(1, aliases=["A"])}, "OPT-3", "called a"),
    ("a method", {"schema": str}, {"schema": "x"}, "OPT-4", r"Base\.schema"),
    ("a class attribute", {"name": str}, {"name": "x"}, "OPT-4", "attribute of Base"),
    ("a property, without a default", {"bounded": bool}, {}, "OPT-4", r"Base\.bounded"),
]


@pytest.mark.parametrize(
    ("annotations", "values", "rule", "said"), [mistake[1:] for mistake in MISTAKES], ids=[m[0] for m in MISTAKES]
)
def test_a_mistake_of_the_author_is_named_when_the_options_are_asked_for(annotations, values, rule, said):
    """OPT-1, OPT-2, OPT-3, OPT-4: each mistake is an error with its rule when the class is first used."""
    wrong = type("Wrong", (Base,), {"__annotations__": dict(annotations), **values}, plain=True)
    with pytest.raises(ContractError, match=said) as caught:
        class_options(wrong)
    assert caught.value.rule == rule
    assert caught.value.advice


def test_an_option_may_replace_a_property_by_a_default():
    class Choosing(Base):
        bounded: bool = True

    assert Choosing(bounded=False).bounded is False


def test_changing_a_default_without_an_annotation_is_refused_because_nothing_would_happen():
    class Twenty(Orders):
        start = 20

    with pytest.raises(ContractError, match="Twenty sets 'start'") as caught:
        class_options(Twenty)
    assert caught.value.rule == "OPT-4"


@pytest.mark.parametrize("default", [[], {}, set(), bytearray()])
def test_mutable_defaults_are_refused_at_once(default):
    with pytest.raises(ValueError, match="default_factory"):
        option(default)


def test_a_default_is_given_once():
    with pytest.raises(ValueError, match="not both"):
        option(1, default_factory=int)  # type: ignore[call-overload]


def test_options_are_derived_once_per_class_and_keep_no_class_alive():
    assert class_options(Orders) is class_options(Orders)
    local = in_a_function()
    class_options(local)
    gone = weakref.ref(local)
    del local
    gc.collect()
    assert gone() is None


def test_a_class_asked_too_early_is_asked_again():
    class Late:
        pass

    assert class_options(Late) == ()
    Late.__annotations__ = {"a": int}
    assert [one.python_name for one in class_options(Late)] == ["a"]


class Host:
    columns: str = option("", aliases=("cols",))
    max_rows: int = 1


def other(annotations: Mapping[str, Any], **values: Any) -> type:
    return type("Other", (), {"__annotations__": dict(annotations), **values})


def test_options_of_two_owners_are_merged_in_order():
    merged = merge_specs(class_options(Orders), class_options(Host))
    assert [one.python_name for one in merged][-2:] == ["columns", "max_rows"]


@pytest.mark.parametrize(
    "clashing",
    [
        other({"columns": str}),
        other({"a": str}, a=option("", name="COLUMNS")),
        other({"maxRows": int}),
        other({"a": str}, a=option("", aliases=["Cols"])),
        other({"a": dict[str, str]}, a=option(prefix="col")),
    ],
)
def test_a_clash_of_two_owners_names_both(clashing):
    for groups in ((clashing, Host), (Host, clashing)):
        with pytest.raises(ContractError, match=r"Other\.\w+ .*Host\.|Host\.\w+ .*Other\.") as caught:
            merge_specs(*map(class_options, groups))
        assert caught.value.rule == "OPT-3"


def test_one_class_may_single_out_a_name_under_its_own_prefix_but_not_share_a_prefix():
    both = {"a": dict[str, str], "b": str}
    assert len(class_options(other(both, a=option(prefix="x."), b=option("", name="x.id")))) == 2
    twice = {"a": dict[str, str], "b": dict[str, str]}
    with pytest.raises(ContractError, match=r"x\.\*"):
        class_options(other(twice, a=option(prefix="x."), b=option(prefix="X.")))
    with pytest.raises(ContractError, match=r"called \*"):
        class_options(other(twice, a=option(prefix=""), b=option(prefix="")))


def test_what_collects_everything_else_does_not_take_the_names_of_another_owner():
    everything = other({"rest": dict[str, str]}, rest=option(prefix=""))
    assert len(merge_specs(class_options(everything), class_options(Host))) == 3
    second = type("Second", (), {"__annotations__": {"more": dict[str, str]}, "more": option(prefix="")})
    with pytest.raises(ContractError, match=r"Other\.rest and Second\.more are both called \*"):
        merge_specs(class_options(everything), class_options(second))
