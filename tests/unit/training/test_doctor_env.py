from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tpu_training.cluster.cloud_tpu import choose_local
from tpu_training.cluster.endpoint import Addresses, LocalTpu, NamedTpu, NoTpu, Target, Wait
from tpu_training.cluster.machine import Machine, find_machine
from tpu_training.commands import Environment, examine
from tpu_training.errors import TpuStateError

PLAIN = Machine(cpus=4, libraries={"tensorflow": "2.19.1"})
TPU_VM = Machine(tpu_chips=4, tpu_generation="v4", has_libtpu=True, libraries=PLAIN.libraries)


def no_metadata(path: str) -> str | None:
    """The metadata server of a machine elsewhere."""
    return None


def look_up(target: Target, wait: Wait) -> Addresses | LocalTpu | NoTpu:
    if isinstance(target, NamedTpu):
        return Addresses(("10.0.0.2:8470",), f"{target.source}={target.name}", "2.19.1")
    return target


def look(
    environ: dict[str, str], machine: Machine = PLAIN, tpu: str | None = None, silent: str = ""
) -> Environment:
    return examine(tpu, None, None, environ, machine, lambda _: silent or None, look_up)


@pytest.mark.parametrize(
    ("environ", "machine", "choice", "reason"),
    [
        ({}, PLAIN, "this machine's CPU", "no setting names a TPU and there is no GPU"),
        ({}, Machine(gpus=2), "2 GPUs by MirroredStrategy", "no setting names a TPU"),
        ({}, TPU_VM, "this machine's TPU", "4 TPU chips (v4) and libtpu"),
        ({"TPU_NAME": "local"}, TPU_VM, "this machine's TPU", "TPU_NAME says local"),
        ({"TPU_NAME": "my-tpu"}, PLAIN, "grpc://10.0.0.2:8470 (1 worker)", "Cloud TPU API"),
        ({"COLAB_TPU_ADDR": "10.1.1.1"}, PLAIN, "grpc://10.1.1.1:8470", "COLAB_TPU_ADDR"),
        (
            {"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://a.b:1,grpc://c.d:1"},
            PLAIN,
            "grpc://a.b:1,grpc://c.d:1 (2 workers)",
            "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS names it",
        ),
        (
            {"TPU_CONFIG": json.dumps({"tpu_node_name": "n", "project": "p", "zone": "z"})},
            PLAIN,
            "by TPUStrategy",
            "TPU_CONFIG=n",
        ),
    ],
)
def test_doctor_env_names_what_a_job_would_train_on_and_why(
    environ: dict[str, str], machine: Machine, choice: str, reason: str
) -> None:
    found = look(environ, machine)
    assert choice in found.choice
    assert reason in found.reason
    assert f"because: {found.reason}" in str(found)


def test_each_setting_is_taken_or_passed_over_or_not_set() -> None:
    found = look({"TPU_NAME": "a", "COLAB_TPU_ADDR": "b.c"}, tpu=None)
    states = {setting.name: setting.state for setting in found.settings}
    assert states["--tpu"] == "not set"
    assert states["TPU_NAME"] == "taken"
    assert states["COLAB_TPU_ADDR"] == "passed over for TPU_NAME"


def test_a_silent_worker_a_preempted_tpu_and_a_wrong_value_are_problems() -> None:
    assert look({"TPU_GRPC_URL": "a.b"}, silent="connection refused").problems == (
        "grpc://a.b:8470: connection refused",
    )
    wrong = look({"TPU_CONFIG": "{"})
    assert "TPU_CONFIG is not JSON" in wrong.problems[0]
    assert wrong.choice == "nothing: see the problem"

    def preempted(target: Target, wait: Wait) -> Addresses:
        raise TpuStateError("the TPU n in z is PREEMPTED: delete it")

    found = examine("n", None, None, {}, PLAIN, lambda _: None, preempted)
    assert found.problems == ("the TPU n in z is PREEMPTED: delete it",)


def test_hints_name_what_is_missing() -> None:
    chips_only = Machine(tpu_chips=4, tpu_generation="v4", libraries={"tensorflow": "2.21.0"})
    hints = look({"TPU_WORKER_HOSTNAMES": "a,b"}, chips_only).hints
    assert [word for hint in hints for word in ("libtpu", "slice") if word in hint] == [
        "libtpu",
        "slice",
    ]
    assert look({}, Machine()).problems == (
        "TensorFlow is not installed: pip install 'tpu-stack-training[cpu]' (with NVIDIA GPUs "
        "'tpu-stack-training[gpu]', on a TPU VM 'tpu-stack-training[tpu]'), or use the Python that "
        "has it",
    )


def test_tpu_chips_are_counted_and_gvnic_is_not(
    tmp_path: Path,
) -> None:
    def plug_in(slot: str, vendor: str, device: str) -> None:
        folder = tmp_path / "sys/bus/pci/devices" / slot
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "device").write_text(device + "\n")

    plug_in("0000:00:04.0", "0x1ae0", "0x005e")
    plug_in("0000:00:05.0", "0x1ae0", "0x005e")
    plug_in("0000:00:06.0", "0x1ae0", "0x0042")
    plug_in("0000:00:07.0", "0x10de", "0x0063")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libtpu.so").touch()
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidiactl"):
        (tmp_path / "dev" / name).touch()
    machine = find_machine(tmp_path, {}, no_metadata)
    assert (machine.tpu_chips, machine.tpu_generation, machine.gpus) == (2, "v4", 1)
    assert machine.has_usable_tpu
    assert "1 GPU, 2 TPU chips (v4)" in str(machine)
    elsewhere = {"TPU_LIBRARY_PATH": "/nowhere"}
    assert not find_machine(tmp_path, elsewhere, no_metadata).has_usable_tpu


def test_the_local_tpu_is_used_only_when_no_other_is_named() -> None:
    named = Addresses(("a.b:1",), "--tpu")
    assert choose_local(named, TPU_VM, split_cpu=False) == named
    assert choose_local(NoTpu(), TPU_VM, split_cpu=True) == NoTpu()
    assert choose_local(NoTpu(), PLAIN, split_cpu=False) == NoTpu()
    assert isinstance(choose_local(NoTpu(), TPU_VM, split_cpu=False), LocalTpu)


def test_the_command_prints_json_alone_loads_no_tensorflow_and_fails_on_a_problem() -> None:
    script = """
import sys
from tpu_training.__main__ import main
code = main(["doctor", "env", "--json"])
assert "tensorflow" not in sys.modules
sys.exit(code)
"""

    def run(**environ: str) -> tuple[int, dict[str, object]]:
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | environ,
        )
        assert not done.stderr
        return done.returncode, json.loads(done.stdout)

    code, found = run()
    assert (code, found["ok"]) == (0, True)
    code, found = run(TPU_GRPC_URL="grpc://127.0.0.1:1")
    assert (code, found["ok"]) == (1, False)
    assert found["problems"] == ["grpc://127.0.0.1:1: connection refused"]
