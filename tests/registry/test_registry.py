# SPDX-License-Identifier: Apache-2.0
"""Sources are found by name, and a broken package affects only itself."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forebay.errors import ConfigurationError
from forebay.registry import BUILT_INS, Registration, Registry, default_registry, format_name


class Orders:
    pass


class HTTPServerLog:
    name = "weblog"


class Daily(HTTPServerLog):
    pass


GROUP = "forebay_test.sources"
Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a distribution on sys.path: `install("shop", {"orders": "shop:Orders"}, shop="class Orders: pass")`."""
    before = set(sys.modules)

    def put(distribution: str, points: dict[str, str], at: str = "", **modules: str) -> Path:
        place = tmp_path / (at or distribution)
        info = place / f"{distribution.replace('-', '_')}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n", encoding="utf-8")
        lines = [f"[{GROUP}]", *(f"{name} = {value}" for name, value in points.items())] if points else []
        (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
        for name, text in modules.items():
            (place / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
        monkeypatch.syspath_prepend(str(place))
        return place

    yield put
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def registry(*built_ins: Registration) -> Registry:
    return Registry(built_ins, group=GROUP)


def names(of: Registry) -> tuple[str, ...]:
    return tuple(entry.name for entry in of.entries())


def called(name: str) -> type:
    return type("Named", (), {"name": name})


def test_the_format_name_is_the_own_name_or_the_class_name_in_snake_case():
    assert format_name(Orders) == "orders"
    assert format_name(HTTPServerLog) == "weblog"
    assert format_name(Daily) == "daily"
    assert format_name(type("HTTPServerLog2Go", (), {})) == "http_server_log2_go"


def test_a_registered_class_is_found_without_regard_to_case():
    ours = registry()
    assert ours.register_class(Orders) == "orders"
    other = called("Other.Name-1")
    assert ours.register_class(other) == "Other.Name-1"
    assert ours.lookup("ORDERS") is Orders and ours.lookup("other.name-1") is other
    assert names(ours) == ("orders", "Other.Name-1")


@pytest.mark.parametrize("name", ["a b", "1a", "ä", "a/b", "a\n"])
def test_what_cannot_be_a_format_name_is_refused(name):
    with pytest.raises(ConfigurationError, match="not a valid format name"):
        registry().register_class(called(name))


def test_packages_are_found_and_imported_only_when_asked_for(install):
    install("shop", {"shop_orders": "shop_one:Sources.Orders"}, shop_one="class Sources:\n    class Orders: pass")
    ours = registry()
    assert names(ours) == ("shop_orders",)
    (entry,) = ours.entries()
    assert (entry.origin, entry.path) == ("the package shop 1.2", "shop_one:Sources.Orders")
    assert "shop_one" not in sys.modules
    assert ours.lookup("shop_orders") is sys.modules["shop_one"].Sources.Orders


def test_a_package_installed_meanwhile_is_found(install):
    ours = registry()
    assert names(ours) == ()
    install("late", {"late": "late_one:Late"}, late_one="class Late: pass")
    assert ours.lookup("late").__name__ == "Late"


def test_an_unknown_name_is_answered_with_the_nearest_and_all_known_ones(install):
    install("shop", {"shop_orders": "shop_two:Orders"})
    ours = registry(Registration("forebay_files", "nowhere:Files"))
    with pytest.raises(ConfigurationError, match=r"'shop_order' \(did you mean 'shop_orders'") as caught:
        ours.lookup("shop_order")
    assert "forebay_files, shop_orders" in str(caught.value.advice)
    assert caught.value.source == "shop_order"
    with pytest.raises(ConfigurationError, match=r"^no source has the name 'zzz'$"):
        raise_without_labels(ours, "zzz")


def raise_without_labels(ours: Registry, name: str) -> None:
    try:
        ours.lookup(name)
    except ConfigurationError as error:
        raise ConfigurationError(error.message) from error


BROKEN = {
    "raises": ("raise RuntimeError('bang')", "RuntimeError: bang", RuntimeError),
    "leaves": ("import sys; sys.exit(3)", "SystemExit: 3", SystemExit),
    "unwritten": ("def (", "SyntaxError", SyntaxError),
    "empty": ("", "AttributeError", AttributeError),
    "function": ("def Source(): pass", "is not a class", None),
    "needs": ("import no_such_dependency.inner", "needs the module 'no_such_dependency'", ModuleNotFoundError),
    "old": ("from json import no_such_name", "ImportError", ImportError),
}


def test_broken_packages_are_errors_of_their_own_names_only(install):
    for name, (text, _, _) in BROKEN.items():
        install(f"broken-{name}", {name: f"broken_{name}:Source"}, **{f"broken_{name}": text})
    install("gone", {"gone": "broken_gone:Source"})
    install("whole", {"whole": "broken_whole:Source"}, broken_whole="class Source: pass")
    ours = registry()
    assert ours.lookup("whole").__name__ == "Source"
    for name, (_, said, cause) in BROKEN.items():
        with pytest.raises(ConfigurationError) as caught:
            ours.lookup(name)
        assert said in caught.value.message
        assert f"broken-{name} 1.2" in caught.value.message
        assert caught.value.source == name
        assert caught.value.advice
        assert type(caught.value.__cause__) is (cause or type(None))
    with pytest.raises(ConfigurationError, match="broken_gone, which does not exist"):
        ours.lookup("gone")


def test_a_missing_dependency_names_the_extra_that_brings_it(install):
    install("shop", {"shop": "shop_three:Shop [fast]"}, shop_three="import no_such_dependency")
    install("forebay-x", {}, fx="import no_such_client")
    ours = registry(Registration("forebay_x", "fx:X", install='pip install "forebay[x]"'))
    for name, module, advice in (
        ("shop", "no_such_dependency", 'pip install "shop[fast]"'),
        ("forebay_x", "no_such_client", 'pip install "forebay[x]"'),
    ):
        with pytest.raises(ConfigurationError, match=f"needs the module '{module}'") as caught:
            ours.lookup(name)
        assert caught.value.advice == advice
    assert names(ours) == ("forebay_x", "shop")


def test_a_repaired_package_loads_at_the_next_question(install):
    place = install("shop", {"shop": "shop_four:Shop"}, shop_four="import no_such_dependency\nclass Shop: pass")
    ours = registry()
    with pytest.raises(ConfigurationError):
        ours.lookup("shop")
    (place / "no_such_dependency.py").write_text("", encoding="utf-8")
    ours.refresh()
    assert ours.lookup("shop").__name__ == "Shop"


def test_entry_points_that_cannot_be_read_are_reported_and_the_others_found(install):
    install("whole", {"whole": "w:W"})
    place = install("nameless", {"nameless": "n:N"})
    (place / "nameless-1.2.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\n", encoding="utf-8")
    place = install("garbled", {"garbled": "g:G"})
    (place / "garbled-1.2.dist-info" / "entry_points.txt").write_bytes(b"[x]\n\xff\xfe=\n")
    ours = registry()
    assert names(ours) == ("whole",)
    with pytest.raises(ConfigurationError) as caught:
        ours.lookup("nameless")
    assert "garbled-1.2.dist-info" in caught.value.message and "nameless-1.2.dist-info" in caught.value.message


def test_the_winner_is_registered_here_then_built_in_then_the_first_distribution(install, caplog):
    install("Alpha", {"Orders": "alpha:Orders"}, alpha="class Orders: pass")
    install("zeta", {"orders": "zeta:Orders"}, zeta="class Orders: pass")  # before the other on sys.path
    install("forebay-y", {}, fy="class Orders: pass")
    without = registry()
    assert without.lookup("orders").__module__ == "alpha"
    ours = registry(Registration("orders", "fy:Orders"))
    assert ours.lookup("orders").__module__ == "fy"
    caplog.clear()
    ours.register_class(Orders)
    assert ours.lookup("orders") is Orders
    for record, loser in zip(caplog.records, ("fy:Orders", "alpha:Orders", "zeta:Orders"), strict=True):
        assert "(registered here) is used" in record.getMessage() and loser in record.getMessage()
    assert names(ours) == ("orders",)


def test_each_clash_is_logged_once(install, caplog):
    install("zeta", {"orders": "zeta:Orders"}, zeta="class Orders: pass")
    install("alpha", {"orders": "alpha:Orders"}, alpha="class Orders: pass")
    ours = registry()
    with caplog.at_level(logging.WARNING, "forebay.registry"):
        for _ in range(3):
            ours.lookup("orders")
            ours.entries()
    (record,) = caplog.records
    assert record.getMessage() == (
        "two sources are called 'orders': alpha:Orders (the package alpha 1.2) is used, "
        "zeta:Orders (the package zeta 1.2) is not"
    )


def test_the_class_registered_last_wins_and_a_cell_run_again_is_no_clash(caplog):
    def cell() -> type:
        class Again:
            pass

        return Again

    ours = registry()
    first, second = cell(), cell()
    ours.register_class(first)
    ours.register_class(second)
    assert ours.lookup("again") is second
    assert not caplog.records
    other = called("again")
    ours.register_class(other)
    assert ours.lookup("again") is other
    (record,) = caplog.records
    assert "two sources are called 'again'" in record.getMessage() and second.__qualname__ in record.getMessage()
    ours.register_class(second)
    assert ours.lookup("again") is second


def test_the_same_class_by_two_ways_is_no_clash(install, caplog):
    install("shop", {"orders": f"{Orders.__module__}:Orders"})
    ours = registry(Registration("orders", f"{Orders.__module__}:Orders"))
    ours.register_class(Orders)
    assert not caplog.records


def test_an_older_version_further_back_on_the_path_is_not_seen(install):
    install("shop", {"old": "o:O", "both": "o:O"}, at="back")
    install("shop", {"both": "n:N"}, at="front")
    assert names(registry()) == ("both",)
    install("shop", {}, at="foremost")
    assert names(registry()) == ()


def test_an_empty_group_looks_for_no_packages(install):
    install("shop", {"shop": "s:S"})
    assert names(Registry([], group="")) == ()


def test_forebays_own_sources_are_known_with_install_hints():
    assert {entry.name for entry in BUILT_INS} <= set(names(default_registry))
    assert BUILT_INS[0].install == 'pip install "forebay[files]"'


def test_an_error_of_the_registry_survives_pickling(install):
    install("shop", {"shop": "shop_five:Shop"}, shop_five="raise RuntimeError('bang')")
    with pytest.raises(ConfigurationError) as caught:
        registry().lookup("shop")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_importing_the_registry_looks_for_nothing():
    code = "import forebay.registry as r; assert r.default_registry._installed is None; r.default_registry.entries()"
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
