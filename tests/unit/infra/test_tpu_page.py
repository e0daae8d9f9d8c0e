"""The TPUs in docs/capacity.md and docs/tpu-types.md pass every check and can be declared."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from .conftest import REPOSITORY, Run, config

EXAMPLES: list[dict[str, Any]] = [
    yaml.safe_load(block)
    for page in ("capacity", "tpu-types")
    for block in re.findall(
        r"```yaml\n((?:tpu-stack:zone[^\n]*\n)?tpu-stack:tpu:.*?)```",
        (REPOSITORY / "docs" / f"{page}.md").read_text("utf-8"),
        re.DOTALL,
    )
]


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 7


@pytest.mark.parametrize(
    "example", EXAMPLES, ids=lambda example: ", ".join(example["tpu-stack:tpu"])
)
def test_an_example_is_a_stack(example: dict[str, Any], run: Run) -> None:
    engine, _ = run({**config(), **example})
    tpu = example["tpu-stack:tpu"]
    if "queued" in tpu:
        assert engine.dynamic("QueuedResource")["request"]
    else:
        assert len(engine.of("V2Vm")) == tpu.get("slices", 1)
