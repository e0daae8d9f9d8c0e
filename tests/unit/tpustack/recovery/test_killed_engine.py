"""Whenever an engine is killed, and however often, its state can be repaired."""

from __future__ import annotations

import contextlib

from hypothesis import given, strategies as st

from tests.unit.tpustack.recovery.small_engine import (
    BUCKET,
    GRANT,
    NETWORK,
    OBJECT,
    PROVIDER,
    SUBNET,
    ConflictError,
    KilledError,
    SmallEngine,
    State,
    problems,
    wanted,
)
from tpustack.recovery.state import id_of, is_interrupted, settled, with_what_may_be_there

NEVER = 1000


@st.composite
def programs(draw: st.DrawFn, turn: int, names: dict[str, int]) -> list[State]:
    """Another program for each turn: things come, go, change in place and get other names.

    A name that was given up does not come back: what is left over under it goes last, and the new
    one would find it taken.
    """
    program = []
    for kinds in ((BUCKET, OBJECT), (NETWORK, SUBNET), (GRANT,)):
        for called in draw(st.sets(st.sampled_from("ab"))):
            place = f"{kinds[0]} {called}"
            same = kinds != (GRANT,) and draw(st.booleans())
            names[place] = names.get(place, turn) if same else turn
            label = draw(st.sampled_from("lm"))
            there = draw(st.integers(1, len(kinds)))
            name = f"{called}{names[place]}"
            program += [wanted(kind, called, name, label) for kind in kinds[:there]]
    return program


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[list[State], int, bool]]:
    """Programs, after how many moments the engine is killed that is at work on each, and whether
    the state is repaired before."""
    names: dict[str, int] = {}
    turns = range(draw(st.integers(1, 5)))
    return [
        (draw(programs(turn, names)), draw(st.integers(1, 40)), draw(st.booleans()))
        for turn in turns
    ]


def repair(engine: SmallEngine) -> None:
    before = engine.state
    if is_interrupted(before):
        assumed = with_what_may_be_there(before)
        assert problems(assumed) == []
        engine.state = settled(before, engine.refresh(assumed))
        assert problems(engine.state) == []
        assert not is_interrupted(engine.state)


@given(lives(), st.booleans())
def test_the_next_update_with_a_refresh_does_what_is_left_and_nothing_is_lost_or_left_over(
    life: list[tuple[list[State], int, bool]], goes: bool
) -> None:
    engine = SmallEngine()
    for program, moments, repaired in life:
        if repaired:
            repair(engine)
        engine.moments = moments
        with contextlib.suppress(KilledError, ConflictError):
            engine.up(program)
    engine.moments = NEVER
    repair(engine)
    # An update that begins without a repair forgets what a killed one was deleting.
    engine.state = engine.refresh(engine.state)
    last = [] if goes else life[-1][0]
    engine.up(last)
    known = {each["id"] for each in engine.state["resources"] if each["type"] != PROVIDER}
    assert set(engine.cloud) == known == {id_of(each) for each in last}
    engine.up(last)
    assert engine.changes == 0
