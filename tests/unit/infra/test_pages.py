"""The examples of settings on the pages are stacks that every check accepts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tpu_infra.checks import find_problems
from tpu_infra.settings.parse import parse

from .conftest import REPOSITORY, config, context_of

EXAMPLE = re.compile(r"```yaml\n(config:\n.*?)```", re.DOTALL)
EXAMPLES = [
    pytest.param(example, id=f"{page.stem}-{number}")
    for page in sorted((REPOSITORY / "docs").glob("*.md"))
    for number, example in enumerate(EXAMPLE.findall(page.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_settings_is_a_stack_that_is_accepted(example: str, root: Path) -> None:
    shown: dict[str, Any] = yaml.safe_load(example)["config"]
    parsed = parse({**config(), **shown}, "test")
    context = context_of(parsed, root)
    if "topology:" in example:
        # As the page says, a slice takes a later provider.
        context = replace(context, provider="9.20.0")
    problems = find_problems(parsed, context)
    assert [str(problem) for problem in problems] == []
