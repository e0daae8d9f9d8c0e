from __future__ import annotations

import io

from rich.console import Console

from tpustack.demo import Demo

OUTPUTS = {"job_url": "gs://a-bucket-with-a-rather-long-name/jobs/train", "vm_name": "a-vm"}


def test_the_commands_to_look_around_are_whole_lines_also_in_a_narrow_terminal() -> None:
    said = io.StringIO()
    demo = Demo("vm", keep=True, console=Console(file=said, width=40))
    demo._explain(OUTPUTS)
    lines = [line.strip() for line in said.getvalue().splitlines()]
    url = f"{OUTPUTS['job_url']}/tensorboard"
    # With its fast loader TensorBoard finds no scalars in a bucket of the local cloud.
    assert f".venv/bin/tensorboard --load_fast=false --logdir {url}" in lines
    (talks,) = (line for line in lines if line.startswith('eval "$('))
    # `pulumi stack output` comes next, and finds the demo's stack in the demo's backend alone.
    assert "local env --backend)" in talks
    assert talks.endswith("local cloud")
