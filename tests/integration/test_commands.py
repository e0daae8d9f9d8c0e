"""The commands that people are told to run, against the engine that is really there."""

from __future__ import annotations

from tests.unit.site.named import named
from tests.unit.site.recorded import ask_pulumi, candidates, recorded, tool
from tpustack.engine.toolchain import Toolchain


def test_this_engine_takes_every_command_that_people_are_told_to_run(tools: Toolchain) -> None:
    told = [one for one in named() if one.program == "pulumi" and one.words]
    assert told
    paths = {path for one in told for path in candidates(one.words)}
    engine = tool("pulumi", ask_pulumi(str(tools.bin / "pulumi"), paths))
    wrong = {one.arguments: engine.refusal(one.words) for one in told}
    assert {said: why for said, why in wrong.items() if why and not said.isupper()} == {}
    assert set(recorded()["pulumi"].commands) <= set(engine.commands)
