"""Both generations of Google's provider: what the checks say, and what is declared with each."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from tpu_infra.checks import find_problems
from tpu_infra.settings.parse import parse

from .conftest import config, context_of

NODE = config(architecture="node", tpu={"acceleratorType": "v2-8", "tensorflowVersion": "2.12.1"})


def problems(settings: dict[str, object], provider: str, root: Path) -> list[str]:
    parsed = parse(settings, "test")
    context = replace(context_of(parsed, root), provider=provider)
    return [str(problem) for problem in find_problems(parsed, context)]


def test_a_generation_without_classic_nodes_refuses_them_and_names_the_one_that_has_them(
    root: Path,
) -> None:
    assert problems(NODE, "10.2.0", root) == [
        'architecture: "node" needs TPU Nodes, which pulumi-gcp 8 is the last to have, and the '
        "project has pulumi-gcp 10.2.0. Use vm, or install the one it needs: `tpustack provider 8`."
    ]
    assert problems(NODE, "8.34.0", root) == []


@pytest.mark.parametrize("provider", ["8.34.0", "9.1.0", "10.2.0"])
def test_every_generation_has_tpu_vms(provider: str, root: Path) -> None:
    assert problems(config(), provider, root) == []


def test_the_checks_know_which_generation_is_installed(root: Path) -> None:
    context = context_of(parse(config(), "test"), root)
    assert type(context)("test", root, context.catalog, context.names).provider == version(
        "pulumi-gcp"
    )
