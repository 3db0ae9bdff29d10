# SPDX-License-Identifier: Apache-2.0
"""Followers that others overtake between any two of their calls of the store."""

from __future__ import annotations

import pytest

from forebay.index import Datasource, ObjectType, Property
from forebay.table.index.gc import collect
from forebay.table.index.replacement import begin_replacement

ROWS = [{"id": number, "name": f"name {number}"} for number in range(6)]


def committed(objects):
    objects.commit("a", [{"id": 1, "name": "newer"}])


def edited(objects):
    with objects.node() as other:
        other.edit(1, name="newer")
    objects.flush()


def searched(objects):
    """The same location, with a definition that searches the names too."""
    names = Property("string", filter=True, text=True)
    source = Datasource("a", {"name": names, "note": Property("string", text=True)})
    return objects.defined(ObjectType("O", {"id": "bigint"}, [source, objects.definition.datasources[1]]))


@pytest.mark.parametrize("keep", [{}, {"keep": 1, "versions": 1}], ids=["default", "keep=1"])
@pytest.mark.parametrize("meanwhile", [committed, edited])
@pytest.mark.parametrize("call", range(1, 18))
def test_a_full_build_that_others_overtake_is_not_behind_them(objects, interrupted, meanwhile, call, keep):
    objects.commit("a", ROWS)
    objects.commit("a", [{"id": 1, "name": "before"}])
    node, overtaken = objects.node(), objects.defined(objects.definition)
    newest = objects.index.head().number + 1

    def others():
        meanwhile(objects)
        collect(objects.index, **keep)
        assert node.refresh().data == newest
        assert node.get(1)["name"] == "newer"

    armed = interrupted(overtaken.index, others, call)
    version = overtaken.follow(full=True)
    assert not armed, "the build has fewer calls"
    collect(objects.index, **keep)
    assert node.refresh().data == objects.follow().data == newest
    assert version.data == newest or version.number < node.version.number
    assert [each.get(1)["name"] for each in (node, objects.node())] == ["newer", "newer"]


def test_a_version_that_equals_the_known_one_is_not_taken_for_it(objects, interrupted):
    """A step that changes no object writes no file of its own. A follower is killed after it put its one too late."""
    objects.commit("a", ROWS)
    objects.commit("a", [])
    node, late = objects.node(), objects.defined(objects.definition)

    class KilledError(Exception):
        pass

    def killed():
        raise KilledError

    def meanwhile():
        objects.follow(exact=True)
        assert node.refresh().number == 2
        with objects.node() as other:
            other.edit(1, note="theirs")
        objects.flush()
        for number in range(3):
            objects.commit("a", [{"id": 0, "name": f"x{number}"}])
        collect(objects.index, versions=1)
        interrupted(late.index, killed, method="get", file="/000000000001.json")

    interrupted(late.index, meanwhile, method="put_if_absent", file="/000000000002.json")
    with pytest.raises(KilledError):
        late.follow(exact=True)
    assert objects.index.versions(objects.index.head().serving)[-2:] == [2, 6]
    assert node.refresh().number == 6
    assert node.get(1, at_least=1)["note"] == "theirs"


@pytest.mark.parametrize("call", range(1, 14))
def test_a_plan_while_another_process_swaps_is_one(objects, interrupted, call):
    objects.commit("a", ROWS)
    new = searched(objects)
    late = objects.defined(objects.definition)
    armed = interrupted(late.index, new.replace, call)
    kind = late.plan().kind
    assert kind == ("INCREMENTAL" if armed else kind)
    assert kind in ("INCREMENTAL", "REPLACEMENT")


@pytest.mark.parametrize("call", range(1, 12))
def test_a_follower_of_a_replacement_that_others_build_and_swap_goes_on(objects, interrupted, call):
    objects.commit("a", ROWS)
    new = searched(objects)
    begun = begin_replacement(new.index, new.definition, objects.index.head().serving)
    assert begun.building is not None
    late = new.defined(new.definition)
    interrupted(late.index, new.replace, call)
    assert late.follower(begun.building.pipeline).follow().data >= begun.number
    assert objects.index.head().serving == begun.building.pipeline
