"""A run of the pipeline leaves the stack files as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpustack.ci.pipeline import restored_checkout

FILE = "# A comment.\nconfig:\n  tpu-stack:zone: us-central1-b # the zone\n"
ENGINES = "config:\n    tpu-stack:zone: us-central1-b\nencryptionsalt: v1:abc\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "stacks").mkdir()
    made = tmp_path / "stacks" / "Pulumi.dev.yaml"
    made.write_text(FILE, encoding="utf-8")
    return made


def test_the_engines_own_lines_are_removed_from_stack_files(path: Path) -> None:
    with restored_checkout(path.parents[1]):
        path.write_text(ENGINES, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == FILE


def test_they_are_removed_when_the_run_fails_too(path: Path) -> None:
    def run() -> None:
        with restored_checkout(path.parents[1]):
            path.write_text(ENGINES, encoding="utf-8")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        run()
    assert path.read_text(encoding="utf-8") == FILE


@pytest.mark.parametrize(
    "edited",
    [
        FILE.replace("us-central1-b", "us-central1-a"),
        ENGINES.replace("us-central1-b", "us-central1-a"),
        ENGINES + "secretsprovider: gcpkms://key\n",
        "config: [",
    ],
)
def test_concurrent_edits_of_a_stack_file_are_kept(path: Path, edited: str) -> None:
    with restored_checkout(path.parents[1]):
        path.write_text(edited, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == edited


def test_an_existing_encryption_salt_is_kept(path: Path) -> None:
    path.write_text(ENGINES, encoding="utf-8")
    other = ENGINES.replace("v1:abc", "v1:def")
    with restored_checkout(path.parents[1]):
        path.write_text(other, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == other


def test_a_file_deleted_during_the_run_is_not_restored(path: Path) -> None:
    with restored_checkout(path.parents[1]):
        path.unlink()
    assert not path.exists()
