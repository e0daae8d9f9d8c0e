"""Which TensorFlow a machine gets, and what it needs in its environment to find the TPU."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tpu_agent.bundle import startup_script

LIST = "https://storage.googleapis.com/libtpu-tf-releases/index.html"
IN_IMAGE = "/lib/libtpu.so"
FOUND = "/venv/site-packages/libtpu/libtpu.so"

# What the script asks its Python and its metadata, answered instead.
STUBS = """
log() { :; }
attribute() { [[ -v METADATA_OF[$1] ]] && printf '%s' "${METADATA_OF[$1]}"; }
python3() {
  case "$*" in
    *libtpu*) echo "$IN_PYTHON" ;;
    *metadata*) echo "$IMAGE_HAS" ;;
    "-c import tensorflow" | "-c import jax") return "$LOADING" ;;
  esac
}
find() { echo "$IN_IMAGE"; }
"""


def run(
    tmp_path: Path,
    call: str,
    *,
    image: str = "",
    loading: int = 0,
    in_python: str = "",
    in_image: str = "",
    **metadata: str,
) -> str:
    values = " ".join(
        f"[{key.replace('_', '-')}]={shlex.quote(text)}" for key, text in metadata.items()
    )
    shared, _ = startup_script("tpu_vm.sh").split("# Every host of a TPU VM", 1)
    script = f"""{shared}
declare -A METADATA_OF=({values})
IMAGE_HAS={shlex.quote(image)} LOADING={loading} IN_PYTHON={in_python} IN_IMAGE={in_image}
{STUBS}
{call}
"""
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A machine where the Python of the script's own environment says what it is asked to do."""
    for version in ("2.18.0", "2.19.1"):
        python = tmp_path / "tpu-stack" / f"venv-{version}" / "bin" / "python3"
        python.parent.mkdir(parents=True)
        python.write_text(
            '#!/bin/bash\ncase "$*" in *find_spec*) echo ' + FOUND + ' ;; *) echo "$*" ;; esac\n'
        )
        python.chmod(0o755)
    return tmp_path


def installs(
    home: Path, version: str, *, image: str = "", loading: int = 0, **metadata: str
) -> list[str]:
    call = f"ensure_tensorflow {version} tensorflow-tpu"
    metadata = {"tensorflow_lock": "none", **metadata}
    lines = run(home, call, image=image, loading=loading, **metadata).splitlines()
    return [line for line in lines if "tensorflow" in line]


def test_the_images_own_tensorflow_is_used_if_it_loads(home: Path) -> None:
    assert installs(home, "2.18.0", image="2.18.0") == []


def test_an_image_whose_tensorflow_cannot_be_loaded_gets_another_of_the_same_version(
    home: Path,
) -> None:
    (line,) = installs(home, "2.18.0", image="2.18.0", loading=139, training_wheels=LIST)
    assert line == f"-m pip install --quiet --find-links {LIST} tensorflow-tpu==2.18.0"


def test_the_trainer_on_jax_gets_tensorflow_for_the_cpu_and_jax_for_the_tpu(home: Path) -> None:
    (line,) = installs(home, "2.19.1", training_backend="jax")
    assert line == "-m pip install --quiet tensorflow-cpu==2.19.1 jax[tpu]<0.12"


@pytest.mark.parametrize(("loading", "lines"), [(0, 0), (1, 1)])
def test_the_image_is_used_for_the_trainer_on_jax_if_it_has_both(
    home: Path, loading: int, lines: int
) -> None:
    line = installs(home, "2.19.1", image="2.19.1", loading=loading, training_backend="jax")
    assert len(line) == lines


def test_a_release_that_the_package_index_has_needs_no_other_list(home: Path) -> None:
    assert installs(home, "2.19.1") == ["-m pip install --quiet tensorflow-tpu==2.19.1"]


def test_a_release_with_a_lock_is_installed_from_it_alone(home: Path) -> None:
    (line,) = installs(home, "2.19.1", tensorflow_lock="tensorflow-tpu==2.19.1 --hash=sha256:0")
    options = "--quiet --require-hashes --only-binary :all:"
    assert line == f"-m pip install {options} --requirement {home}/tpu-stack/tensorflow.lock"


@pytest.mark.parametrize(
    ("python", "pluggable", "in_python", "in_image", "library"),
    [
        ("python3", "true", "", IN_IMAGE, IN_IMAGE),
        ("python3", "true", "", "", None),
        ("python3", "true", FOUND, "", FOUND),
        ("python3", "false", "", IN_IMAGE, None),
        ("$BASE/venv-2.19.1/bin/python3", "false", "", IN_IMAGE, FOUND),
        ("$BASE/venv-2.19.1/bin/python3", "true", "", IN_IMAGE, FOUND),
    ],
)
def test_tensorflow_finds_libtpu_where_pip_or_the_image_put_it(
    home: Path, python: str, pluggable: str, in_python: str, in_image: str, library: str | None
) -> None:
    said = run(
        home,
        f'PYTHON="{python}"; libtpu_settings',
        in_python=in_python,
        in_image=in_image,
        tpu_pluggable=pluggable,
    )
    assert said.splitlines() == (
        [
            "NEXT_PLUGGABLE_DEVICE_USE_C_API=true",
            f"TF_PLUGGABLE_DEVICE_LIBRARY_PATH={library}",
            f"TPU_LIBRARY_PATH={library}",
        ]
        if library
        else []
    )


def test_a_machine_whose_jobs_bring_their_framework_installs_no_tensorflow(tmp_path: Path) -> None:
    said = run(tmp_path, 'ensure_tensorflow none tensorflow-tpu; echo "$PYTHON"')
    assert said == "python3"


def test_a_machine_that_is_the_tpu_drives_its_own_chips_and_asks_no_tpu_api(tmp_path: Path) -> None:
    """It has the number of a worker from Google, or not."""
    told: dict[str, Any] = {"bucket_url": "gs://b", "tpu_name": "t"}
    told |= {"tpu_zone": "z", "tpu_project": "p"}
    here = {**told, "tpu_is_this_machine": "true"}
    whole = startup_script("tpu_vm.sh")
    functions = whole[whole.index("is_further_slice() {") : whole.index("# Prints what Google has")]
    call = functions + 'start_training() { echo "$@"; }; train_here'
    assert run(tmp_path, call, **here) == "local"
    asked = 'status_of() { echo "$1" >&2; echo 200; }; await_grants 2>&1'
    assert "tpu.googleapis.com" not in run(tmp_path, asked, **here)
    assert "tpu.googleapis.com" in run(tmp_path, asked, **told)
