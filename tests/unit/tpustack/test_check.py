"""`tpustack check`: every problem of every stack file, quickly, without engine or cloud."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Run

BROKEN = """
config:
  gcp:project: some-project
  tpu-stack:zone: us-central1-b
  tpu-stack:tpu:
    acceleratorType: v2-9
    runtimeVersion: tpu-vm-tf-2.18.0-pod-se
  tpu-stack:vm:
    machineType: n1-nosuch-2
"""


def test_every_stack_file_of_the_repository_is_fine(project: Path, run: Run) -> None:
    done = run("check")
    assert done.code == 0
    assert done.err == ""
    fine = [line for line in done.out.splitlines() if not line.startswith(" ")]
    assert fine == ["dev: fine", "local: fine", "local-node: fine", "prod: fine", "staging: fine"]
    assert "  warning: training.tensorflowVersion is 2.19.1" in done.out


def test_all_problems_of_all_stacks_are_reported_at_once(project: Path, run: Run) -> None:
    (project / "stacks" / "Pulumi.broken.yaml").write_text(BROKEN, encoding="utf-8")
    (project / "stacks" / "Pulumi.empty.yaml").write_text("", encoding="utf-8")
    done = run("check")
    assert done.code == 2
    assert "prod: fine" in done.out
    lines = done.err.splitlines()
    assert lines[0] == "broken: 2 problems (stacks/Pulumi.broken.yaml)"
    assert lines[1].startswith(
        '  - tpu.acceleratorType: "v2-9" is not a TPU type that Google offers.'
    )
    assert lines[2].startswith('  - vm.machineType: "n1-nosuch-2" is not a machine type')
    assert lines[3:] == [
        "empty: 3 problems (stacks/Pulumi.empty.yaml)",
        "  - gcp:project is required: everything is created in a project. "
        "Run `pulumi config set gcp:project YOUR-PROJECT --stack empty`.",
        "  - zone is required. Set it: Zone of the TPU and the VM, for example us-central1-a. "
        "With an AI zone, the VM is in the parent zone.",
        "  - tpu.runtimeVersion is required for architecture vm. Set one, for example "
        "tpu-vm-tf-2.16.1-se or tpu-vm-tf-2.16.1-pod-se.",
    ]


UNKNOWN_AND_WRONG = """
config:
  gcp:project: some-project
  tpu-stack:zone: us-central1-b
  tpu-stack:architectur: vm
  tpu-stack:tpu:
    acceleratorType: v2-9
    runtimeVersion: tpu-vm-tf-2.18.0-pod-se
    slize: 2
  tpu-stack:vm:
    machineType: n1-nosuch-2
  tpu-stack:bucket:
    location: europe-west4
"""


def test_wrong_values_are_reported_together_with_unknown_names(project: Path, run: Run) -> None:
    path = project / "stacks" / "Pulumi.broken.yaml"
    path.write_text(UNKNOWN_AND_WRONG, encoding="utf-8")
    lines = run("check", "--stack", "broken").err.splitlines()
    assert lines[0] == "broken: 5 problems (stacks/Pulumi.broken.yaml)"
    said = "\n".join(lines[1:])
    for setting in ("architectur", "tpu.slize", "tpu.acceleratorType", "vm.machineType"):
        assert f"  - {setting}: " in said
    assert "  - bucket.location: " in said


def test_what_a_mistyped_setting_would_have_made_right_is_no_problem(
    project: Path, run: Run
) -> None:
    flex = """
config:
  gcp:project: some-project
  tpu-stack:zone: us-central1-a
  tpu-stack:tpu:
    acceleratorType: v5litepod-4
    runtimeVersion: tpu-vm-tf-2.16.1-pod-pjrt
    capasity: flex-start
    queued: {runHours: 12}
"""
    (project / "stacks" / "Pulumi.flex.yaml").write_text(flex, encoding="utf-8")
    lines = run("check", "--stack", "flex").err.splitlines()
    assert lines[0] == "flex: 1 problem (stacks/Pulumi.flex.yaml)"
    wrong = flex.replace("capasity: flex-start", "capacity: flexstart")
    (project / "stacks" / "Pulumi.flex.yaml").write_text(wrong, encoding="utf-8")
    lines = run("check", "--stack", "flex").err.splitlines()
    assert lines[0] == "flex: 1 problem (stacks/Pulumi.flex.yaml)"


def test_what_an_update_would_warn_of_is_said_too(project: Path, run: Run) -> None:
    several = BROKEN.replace("v2-9", "v2-8\n    slices: 2").replace("n1-nosuch-2", "n1-standard-2")
    (project / "stacks" / "Pulumi.several.yaml").write_text(several, encoding="utf-8")
    done = run("check", "--stack", "several")
    assert done.code == 0
    assert "warning: tpu.slices is 2, but TensorFlow's TPUStrategy drives one TPU" in done.out


def test_one_stack_alone_can_be_checked(project: Path, run: Run) -> None:
    (project / "stacks" / "Pulumi.broken.yaml").write_text(BROKEN, encoding="utf-8")
    assert run("check", "--stack", "dev").code == 0
    assert run("check", "--stack", "broken").code == 2


def test_json_has_every_problem_with_setting_value_reason_and_cure(project: Path, run: Run) -> None:
    (project / "stacks" / "Pulumi.broken.yaml").write_text(BROKEN, encoding="utf-8")
    done = run("check", "--json", "--stack", "broken")
    assert done.code == 2
    (stack,) = json.loads(done.out)["stacks"]
    assert stack["stack"] == "broken"
    assert stack["file"] == "stacks/Pulumi.broken.yaml"
    assert [set(problem) for problem in stack["problems"]] == [
        {"setting", "value", "why", "cure"}
    ] * 2
    assert {problem["value"] for problem in stack["problems"]} == {"v2-9", "n1-nosuch-2"}


def test_a_setting_that_is_missing_is_null_in_json(project: Path, run: Run) -> None:
    (project / "stacks" / "Pulumi.empty.yaml").write_text("", encoding="utf-8")
    (stack,) = json.loads(run("check", "--json", "--stack", "empty").out)["stacks"]
    assert {problem["value"] for problem in stack["problems"]} == {None}


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        ("nosuch", 'stack: "nosuch" has no file Pulumi.nosuch.yaml. Existing files: dev, local'),
        ("../dev", '"../dev" is no name of a stack'),
        ("", '"" is no name of a stack'),
        ("x" * 5000, "is no name of a stack. Use at most 100 letters"),
    ],
)
def test_a_stack_that_cannot_be_is_refused_with_one_message(
    stack: str, message: str, project: Path, run: Run
) -> None:
    done = run("check", "--stack", stack)
    assert done.code == 2
    assert message in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"config: [", "has a file that is not valid YAML"),
        (b"config: \xff\xfe", "has a file that can't be read: it is not UTF-8"),
        (b"- a list", "gcp:project is required"),
        (b"config: text", 'config: "text" is not a map of settings'),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_reason(
    content: bytes, message: str, project: Path, run: Run
) -> None:
    (project / "stacks" / "Pulumi.odd.yaml").write_bytes(content)
    done = run("check", "--stack", "odd")
    assert done.code == 2
    assert message in done.err


def test_a_project_without_stack_files_is_told_how_to_make_one(project: Path, run: Run) -> None:
    for path in (project / "stacks").iterdir():
        path.unlink()
    done = run("check")
    assert done.code == 2
    assert "has no stack files. Make one with `tpustack init`" in done.err


def test_a_check_loads_neither_engine_nor_tensorflow() -> None:
    code = (
        "import sys; sys.argv = ['tpustack', 'check', '--json']\n"
        "from tpustack.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'tensorflow', 'pulumi', 'rich', 'requests'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
