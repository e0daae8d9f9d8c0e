"""What machines install as root: only what has the hashes of a lock, if there is one."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

from tpu_agent.bundle import LOCKS, lock_of, startup_script
from tpu_infra.catalog.entries import JAX_PACKAGE, TPU_PACKAGE, VM_PACKAGE

from .conftest import CATALOG, Run, config

RELEASES = [
    (package, release.version)
    for package in (VM_PACKAGE, TPU_PACKAGE, JAX_PACKAGE)
    for release in CATALOG.packages.releases(package).values()
    if not release.broken
]


@pytest.mark.parametrize(("package", "version"), RELEASES)
def test_each_release_is_locked(package: str, version: str) -> None:
    lock = lock_of(package, version) or ""
    entries = re.split(r"\n(?=\S)", lock.partition("\n")[2].strip())
    on_jax = package == JAX_PACKAGE
    tensorflow = VM_PACKAGE if on_jax else package
    assert [entry for entry in entries if entry.startswith(f"{tensorflow}=={version} ")]
    # TensorFlow 2.12 needs it, too, without a TPU.
    assert not on_jax or [entry for entry in entries if entry.startswith("jax==")]
    assert [entry for entry in entries if entry.startswith("matplotlib==")]
    assert [entry for entry in entries if "    --hash=sha256:" not in entry] == []
    # That of some is in Google's own list of wheels alone, which has no hashes.
    listed = CATALOG.packages.releases(package)[version].wheels is not None
    has_libtpu = any(entry.startswith("libtpu==") for entry in entries)
    assert has_libtpu == (package != VM_PACKAGE and not listed)


def test_the_newest_release_for_the_vm_is_what_make_newest_tests_training_with() -> None:
    newest = next(iter(CATALOG.packages.releases(VM_PACKAGE)))
    root = Path(__file__).parents[3]
    assert f"\n{VM_PACKAGE}=={newest};" in (root / "requirements-newest.in").read_text("utf-8")
    assert f"\n{VM_PACKAGE}=={newest} " in (root / "requirements-newest.txt").read_text("utf-8")


def test_no_lock_names_a_package_index() -> None:
    assert [path.name for path in LOCKS.glob("*.txt") if "://" in path.read_text("utf-8")] == []


def test_each_machine_gets_the_lock_of_what_it_installs(run: Run) -> None:
    bare = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    engine, _ = run(config(tpu=bare, training={"tensorflowVersion": "2.19.1"}))
    told = {kind: engine.one(kind)["metadata"]["tensorflow-lock"] for kind in ("Instance", "V2Vm")}
    assert "\ntensorflow-cpu==2.19.1 \\\n" in told["Instance"]
    assert "\ntensorflow-tpu==2.19.1 \\\n" in told["V2Vm"]


def test_a_release_without_a_lock_is_installed_with_a_warning(run: Run) -> None:
    engine, _ = run(config(training={"tensorflowVersion": "2.22.0"}))
    assert engine.one("Instance")["metadata"]["tensorflow-lock"] == "none"
    (warning,) = [text for text in engine.warnings if "hash check" in text]
    assert "tensorflow-cpu 2.22.0 is installed as root without hash checks" in warning


def test_a_release_without_a_lock_next_to_jax_has_its_own_name_in_the_warning(run: Run) -> None:
    jax = {"runOn": "tpu", "backend": "jax", "tensorflowVersion": "2.22.0"}
    host = {"acceleratorType": "ct6e-standard-4t", "capacity": "spot"}
    settings = config(architecture="compute", zone="us-east5-a", tpu=host, training=jax)
    engine, _ = run(settings)
    (warning,) = [text for text in engine.warnings if "hash check" in text]
    assert "tensorflow-cpu 2.22.0 is installed as root without hash checks" in warning


def test_a_libtpu_out_of_googles_list_is_installed_with_a_warning(run: Run) -> None:
    bare = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    engine, _ = run(config(tpu=bare, training={"tensorflowVersion": "2.18.0"}))
    assert "\ntensorflow-tpu==2.18.0 \\\n" in engine.one("V2Vm")["metadata"]["tensorflow-lock"]
    (warning,) = [text for text in engine.warnings if "hash" in text]
    assert "the libtpu of tensorflow-tpu 2.18.0 is installed as root without" in warning


def wheel(folder: Path, name: str, needs: str = "") -> str:
    """A package; returns its line of a lock."""
    path = folder / f"{name}-9.9-py3-none-any.whl"
    info = f"{name}-9.9.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "")
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n"
        archive.writestr(f"{info}/METADATA", metadata + needs)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        archive.writestr(f"{info}/RECORD", "")
    return f"{name}==9.9 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def install(
    folder: Path, lock: str | None, wheels: Path | None = None
) -> tuple[int, str, set[str]]:
    """Run the script's own function with pip; the exit code, what it said, what it installed."""
    pip = pytest.importorskip("pip", reason="`make next` makes an environment without pip")
    told = {"tensorflow-lock": lock, "training-wheels": wheels}
    for name, text in told.items():
        if text is not None:
            (folder / name).write_text(str(text))
    base = folder / "home" / "tpu-stack"
    base.mkdir(parents=True)
    venv.create(folder / "got")
    (packages,) = folder.glob("got/lib/*/site-packages")
    # With --python, pip would start itself a second time.
    (packages / "pip").symlink_to(Path(pip.__file__).parent)
    shared, _ = startup_script("vm.sh").split("# The VM: ", 1)
    script = f"""{shared}
attribute() {{ cat "{folder}/$1" 2>/dev/null; }}
PYTHON={folder}/got/bin/python
install_tensorflow tensorflow==9.9
"""
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_NO_CACHE_DIR": "1"}
    done = subprocess.run(
        ["bash", "-c", script],
        env=os.environ | offline | {"HOME": str(base.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = {path.stem for path in packages.glob("*.py")}
    return done.returncode, done.stdout + done.stderr, found


@pytest.mark.slow
def test_what_the_lock_names_is_installed(tmp_path: Path) -> None:
    lock = wheel(tmp_path, "tensorflow", "Requires-Dist: needed\n") + wheel(tmp_path, "needed")
    assert install(tmp_path, lock) == (0, "", {"tensorflow", "needed"})


@pytest.mark.slow
def test_what_the_lock_lacks_comes_from_googles_list(tmp_path: Path) -> None:
    lock = wheel(tmp_path, "tensorflow", "Requires-Dist: needed\nRequires-Dist: libtpu\n")
    lock += wheel(tmp_path, "needed")
    googles = tmp_path / "list"
    googles.mkdir()
    wheel(googles, "libtpu")
    assert install(tmp_path, lock, googles) == (0, "", {"tensorflow", "needed", "libtpu"})


@pytest.mark.slow
def test_hashes_are_checked_next_to_googles_list_of_wheels(tmp_path: Path) -> None:
    lock = wheel(tmp_path, "tensorflow", "Requires-Dist: libtpu\n")
    wheel(tmp_path, "tensorflow", "Summary: evil\n")
    wheel(tmp_path, "libtpu")
    code, said, got = install(tmp_path, lock, tmp_path)
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in said
    assert (code, got) == (1, set())


@pytest.mark.slow
def test_a_wheel_that_was_changed_since_is_refused(tmp_path: Path) -> None:
    lock = wheel(tmp_path, "tensorflow")
    wheel(tmp_path, "tensorflow", "Summary: evil\n")
    code, said, got = install(tmp_path, lock)
    assert code != 0
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in said
    assert got == set()


@pytest.mark.slow
def test_a_dependency_that_the_lock_does_not_name_is_refused(tmp_path: Path) -> None:
    lock = wheel(tmp_path, "tensorflow", "Requires-Dist: needed\n")
    wheel(tmp_path, "needed")
    code, said, got = install(tmp_path, lock)
    assert code != 0
    assert "needed" in said
    assert got == set()


@pytest.mark.slow
def test_without_a_lock_the_machine_says_that_nothing_was_checked(tmp_path: Path) -> None:
    wheel(tmp_path, "tensorflow")
    code, said, got = install(tmp_path, "none")
    assert (code, got) == (0, {"tensorflow"})
    assert "no hashes are known for tensorflow==9.9" in said
    assert "the training's report will have no charts" in said


@pytest.mark.slow
def test_a_machine_without_a_lock_installs_nothing(tmp_path: Path) -> None:
    wheel(tmp_path, "tensorflow")
    code, _, got = install(tmp_path, None)
    assert (code, got) == (1, set())
