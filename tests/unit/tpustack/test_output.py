"""Of the engine's many lines the demo shows those that tell something."""

from __future__ import annotations

from tpustack.demo import engine_output

LINES = """\
Updating (local):
 +  gcp:storage:Bucket bucket creating (0s)
@ updating....
 +  gcp:storage:Bucket bucket created (0.14s)
 -  gcp:compute:Network network deleted (5s)
 ~  gcp:compute:Instance instance updated (1m2s) [diff: ~metadata]
 +  tpu-stack:infra:Vm vm created
Diagnostics:
  gcp:compute:Instance (instance):
    error: quota exceeded

Outputs:
    bucket_url: "gs://b"
Resources:
    + 2 created
"""


def test_finished_resources_and_errors_are_shown() -> None:
    said: list[str] = []
    output = engine_output(said.append)
    for line in LINES.splitlines():
        output(line)
    assert said == [
        "+ storage:Bucket bucket created (0.14s)",
        "- compute:Network network deleted (5s)",
        "~ compute:Instance instance updated (1m2s)",
        "+ tpu-stack:infra:Vm vm created",
        "  gcp:compute:Instance (instance):",
        "    error: quota exceeded",
    ]
