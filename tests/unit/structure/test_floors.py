"""Inside a room, packages import downwards only, and no modules form a circle.

The floors stand in floors.yaml, the ground floor of each room first.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.unit.structure.modules import (
    against_the_floors,
    circles,
    entries,
    imports_within,
)

FLOORS: dict[str, list[list[str]]] = yaml.safe_load(
    (Path(__file__).parent / "floors.yaml").read_text(encoding="utf-8")
)
ROOMS = sorted(FLOORS)


@pytest.mark.parametrize("room", ROOMS)
def test_modules_of_a_room_form_no_circle_also_by_types_and_inside_functions(room: str) -> None:
    assert circles(imports_within(room)) == []


@pytest.mark.parametrize("room", ROOMS)
def test_each_entry_of_a_room_stands_on_one_floor(room: str) -> None:
    listed = [entry for floor in FLOORS[room] for entry in floor]
    assert sorted(listed) == sorted(entries(room))


@pytest.mark.parametrize("room", ROOMS)
def test_packages_of_a_room_import_from_the_floors_below_their_own_only(room: str) -> None:
    assert against_the_floors(imports_within(room), FLOORS[room]) == []


def test_a_circle_of_three_is_found_whatever_else_they_import() -> None:
    graph = {"a": {"b", "d"}, "b": {"c"}, "c": {"a"}, "d": set[str]()}
    assert circles(graph) == [["a", "b", "c"]]


def test_imports_upwards_and_sideways_are_found() -> None:
    graph = {
        "room.low": {"room.high.part"},
        "room.beside": {"room.low"},
        "room.high.part": {"room.low"},
    }
    assert against_the_floors(graph, [["low", "beside"], ["high"]]) == [
        "room.low imports room.high.part",
        "room.beside imports room.low",
    ]
