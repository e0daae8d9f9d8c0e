"""What TensorFlow finds in its environment when it is imported, and one host of a slice."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tpu_training
from tpu_training.__main__ import main, prepare
from tpu_training.cluster.endpoint import Addresses, LocalTpu, NoTpu
from tpu_training.cluster.machine import (
    Machine,
    Slice,
    check_library,
    choose_local,
    find_machine,
    find_slice,
    installed_library,
)
from tpu_training.errors import InputError
from tpu_training.job import start

LIBTPU = "/venv/libtpu/libtpu.so"
PLUG_IN = "NEXT_PLUGGABLE_DEVICE_USE_C_API"
PLUG_IN_LIBRARY = "TF_PLUGGABLE_DEVICE_LIBRARY_PATH"
NAMES = (PLUG_IN, PLUG_IN_LIBRARY, "TPU_LIBRARY_PATH", "TPU_LOAD_LIBRARY")
FOUND = {PLUG_IN: "true", PLUG_IN_LIBRARY: LIBTPU, "TPU_LIBRARY_PATH": LIBTPU}
LEFT = {"TPU_LOAD_LIBRARY": "0"}

CPU = Machine()
TPU_VM = Machine(tpu_chips=4, tpu_generation="v4", has_libtpu=True)
HOST = replace(TPU_VM, slice=Slice(0, ("10.0.0.1", "10.0.0.2")))

# A user's model that notes what TensorFlow would find if it were imported here.
OWN = f"""
import json, os, pathlib
names = {NAMES!r}
known = {{name: os.environ[name] for name in names if name in os.environ}}
pathlib.Path(__file__).with_suffix(".json").write_text(json.dumps(known))
"""


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        # Set first: what main() sets is then taken back after the test, too.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def seen_by_own_model(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    machine: Machine,
    library: str | None,
    *arguments: str,
) -> dict[str, str]:
    """Return what an own model finds in the environment when `tpu-training` imports it."""
    monkeypatch.setattr("tpu_training.cluster.machine.find_machine", lambda: machine)
    monkeypatch.setattr("tpu_training.cluster.machine.installed_library", lambda: library)
    (folder / "own.py").write_text(OWN)
    mode, *rest = arguments
    code = main([mode, f"--model={folder}/own.py", "--data=d", "--model-dir=m", *rest])
    assert code == 2
    found: dict[str, str] = json.loads((folder / "own.json").read_text())
    return found


@pytest.mark.parametrize(
    ("machine", "library", "arguments", "given", "expected"),
    [
        (TPU_VM, LIBTPU, ["train"], {}, FOUND),
        (TPU_VM, LIBTPU, ["lr-range-test", "--tpu=local"], {}, FOUND),
        # The runtime's TensorFlow brings its own.
        (TPU_VM, None, ["train", "--tpu", "local"], {}, {}),
        (TPU_VM, LIBTPU, ["train", "--tpu=grpc://10.0.0.2"], {}, LEFT),
        (TPU_VM, LIBTPU, ["evaluate", "--tpu=other"], {}, LEFT),
        (HOST, LIBTPU, ["train"], {}, LEFT),
        (CPU, None, ["train"], {}, {}),
        (CPU, LIBTPU, ["train"], {}, {}),
        # With both, TensorFlow aborts the process while it is imported.
        (TPU_VM, LIBTPU, ["train", "--tpu=other"], FOUND, LEFT | {"TPU_LIBRARY_PATH": LIBTPU}),
        # What the user names is taken, for both of TensorFlow's ways to libtpu.
        (
            TPU_VM,
            LIBTPU,
            ["train"],
            {"TPU_LIBRARY_PATH": "/my.so"},
            {PLUG_IN: "true", PLUG_IN_LIBRARY: "/my.so", "TPU_LIBRARY_PATH": "/my.so"},
        ),
    ],
)
def test_before_tensorflow_is_imported_it_is_told_of_the_plug_in_or_kept_from_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    machine: Machine,
    library: str | None,
    arguments: list[str],
    given: dict[str, str],
    expected: dict[str, str],
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert seen_by_own_model(tmp_path, monkeypatch, machine, library, *arguments) == expected


def fit_on_jax(config: str) -> None:
    given: Any = {"backend": "jax", "nothing": config}
    with pytest.raises(InputError, match="--nothing: unknown"):
        tpu_training.fit(data="d", model_dir="m", params=given)


@pytest.mark.parametrize(
    "begin",
    [
        lambda config: prepare(["train", "--backend=jax"]),
        lambda config: prepare(["train", f"--config={config}"]),
        fit_on_jax,
    ],
)
def test_the_tpu_is_left_to_jax_wherever_the_backend_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: Callable[[str], None]
) -> None:
    monkeypatch.setattr("tpu_training.cluster.machine.find_machine", lambda: TPU_VM)
    (tmp_path / "c.json").write_text('{"backend": "jax"}')
    begin(f"{tmp_path}/c.json")
    assert {name: value for name in NAMES if (value := os.environ.get(name))} == LEFT


@pytest.mark.parametrize("command", ["compile", "data", "export"])
def test_a_command_that_does_not_train_leaves_the_tpu_to_the_training(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("tpu_training.cluster.machine.find_machine", lambda: TPU_VM)
    prepare([command, "--tpu=v3-8"])
    assert {name: value for name in NAMES if (value := os.environ.get(name))} == LEFT


def test_only_the_libtpu_that_came_with_tensorflow_tpu_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "libtpu").mkdir()
    (tmp_path / "libtpu/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "libtpu", raising=False)
    assert installed_library() is None
    information = tmp_path / "tensorflow_tpu-2.19.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Name: tensorflow-tpu\nVersion: 2.19.1\n")
    assert installed_library() == str(tmp_path / "libtpu/libtpu.so")


def test_settings_that_keep_tensorflow_from_the_tpu_are_named_with_their_cure() -> None:
    with pytest.raises(InputError, match=r"^TPU_LOAD_LIBRARY=0 keeps .* unset TPU_LOAD_LIBRARY"):
        check_library({"TPU_LOAD_LIBRARY": "0"})
    with pytest.raises(InputError, match=r"^TF_PLUG.*='/lib/none.so' does not exist; unset it"):
        check_library({PLUG_IN_LIBRARY: "/lib/none.so"})


class Metadata:
    """A TPU VM's metadata, as TensorFlow's own worker reads it."""

    def __init__(self, worker: int, hosts: int) -> None:
        hosts_ = ",".join(f"unknown:unknown:10.0.0.{host + 1}" for host in range(hosts))
        self.values = {
            "instance/attributes/agent-worker-number": str(worker),
            "instance/attributes/worker-network-endpoints": hosts_,
        }

    def __call__(self, path: str) -> str | None:
        return self.values.get(path)


def test_worker_0_of_a_slice_drives_all_hosts_by_grpc() -> None:
    machine = replace(TPU_VM, slice=find_slice(Metadata(0, 4), {}))
    workers = choose_local(NoTpu(), machine, split_cpu=False)
    assert isinstance(workers, Addresses)
    assert workers.url.split(",")[3] == "grpc://10.0.0.4:8470"
    assert workers.source == "the metadata of this slice"


def test_another_worker_of_a_slice_does_not_train_and_says_which_does() -> None:
    machine = replace(TPU_VM, slice=find_slice(Metadata(2, 4), {}))
    with pytest.raises(InputError, match="worker 2 of a slice of 4 hosts; start the training on"):
        choose_local(NoTpu(), machine, split_cpu=False)
    assert choose_local(NoTpu(), machine, split_cpu=True) == NoTpu()
    named = Addresses(("a.b:1",), "--tpu")
    assert choose_local(named, machine, split_cpu=False) == named


def test_local_on_a_slice_is_refused_instead_of_waiting_for_the_other_hosts() -> None:
    with pytest.raises(InputError, match=r"^--tpu=local: this is worker 0 of a slice of 2 hosts"):
        choose_local(LocalTpu("--tpu", "--tpu says local"), HOST, split_cpu=False)


@pytest.mark.parametrize(
    ("metadata", "environ"),
    [
        (Metadata(0, 1), {}),
        (Metadata(0, 0), {}),
        # Google's bounds cut this host's chips out of the slice.
        (Metadata(0, 4), {"TPU_PROCESS_BOUNDS": "1,1,1"}),
        (Metadata(0, 4), {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}),
    ],
)
def test_the_only_host_is_no_slice(metadata: Metadata, environ: dict[str, str]) -> None:
    assert find_slice(metadata, environ) is None


def test_google_kubernetes_engine_says_in_variables_which_worker_this_is() -> None:
    environ = {"TPU_WORKER_HOSTNAMES": "w-0.tpu,w-1.tpu", "TPU_WORKER_ID": "1"}
    assert find_slice(Metadata(0, 0), environ) == Slice(1, ("w-0.tpu", "w-1.tpu"))


def test_the_metadata_server_is_asked_only_where_there_are_chips(tmp_path: Path) -> None:
    def slice_of(folder: Path) -> Slice | None:
        return find_machine(folder, {}, Metadata(1, 2)).slice

    assert slice_of(tmp_path) is None
    chip = tmp_path / "sys/bus/pci/devices/0000:00:04.0"
    chip.mkdir(parents=True)
    (chip / "vendor").write_text("0x1ae0")
    (chip / "device").write_text("0x005e")
    assert slice_of(tmp_path) == Slice(1, ("10.0.0.1", "10.0.0.2"))


def test_pauses_of_a_bucket_that_fails_are_short_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delay, retries = "GCS_RETRY_CONFIG_MAX_DELAY_TIME_US", "GCS_RETRY_CONFIG_MAX_RETRIES"
    monkeypatch.setenv(delay, "5")
    monkeypatch.setenv(retries, "")
    monkeypatch.delenv(retries)
    monkeypatch.setattr("tpu_training.cluster.machine.find_machine", lambda: CPU)
    start.prepare_tensorflow(None, trains=False)
    assert (os.environ[delay], os.environ[retries]) == ("5", "20")


def test_tpu_chips_are_counted_and_gvnic_is_not(tmp_path: Path) -> None:
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
    machine = find_machine(tmp_path, {}, Metadata(0, 0))
    assert (machine.tpu_chips, machine.tpu_generation) == (2, "v4")
    assert machine.has_usable_tpu
    elsewhere = {"TPU_LIBRARY_PATH": "/nowhere"}
    assert not find_machine(tmp_path, elsewhere, Metadata(0, 0)).has_usable_tpu


def test_the_local_tpu_is_used_only_when_no_other_is_named() -> None:
    named = Addresses(("a.b:1",), "--tpu")
    assert choose_local(named, TPU_VM, split_cpu=False) == named
    assert choose_local(NoTpu(), TPU_VM, split_cpu=True) == NoTpu()
    assert choose_local(NoTpu(), CPU, split_cpu=False) == NoTpu()
    assert isinstance(choose_local(NoTpu(), TPU_VM, split_cpu=False), LocalTpu)
