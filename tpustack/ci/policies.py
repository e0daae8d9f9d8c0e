"""The policy pack of another revision: a change is judged by the rules that it did not write."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from infra.settings.parse import load_yaml
from tpustack.ci import touched
from tpustack.engine.stack import POLICY

# The rules import what is beside them first (policy/__main__.py).
_ROOMS = ("infra", POLICY)


@contextmanager
def policies_of(root: Path, revision: str | None) -> Iterator[Path | None]:
    """Yield the folder of the policy pack of a revision; None: the one of the checkout."""
    if revision is None:
        yield None
        return
    with TemporaryDirectory(prefix="tpustack-policies-") as folder:
        pack = Path(folder) / POLICY
        if rooms := touched.rooms_at(root, revision, _ROOMS):
            _extract(root, revision, rooms, Path(folder))
        if pack.is_dir():
            _find_environment(pack / "PulumiPolicy.yaml", root)
        yield pack


def note(root: Path, revision: str | None) -> str:
    """Return what a reader should know where a change touches the rules; empty if it does not."""
    if revision is None or not touched.differs(root, revision, POLICY):
        return ""
    return f"The rules of `{revision}` were asked: this change touches `{POLICY}/`, too."


def _extract(root: Path, revision: str, rooms: list[str], folder: Path) -> None:
    done = subprocess.run(
        ["git", "archive", "--format=tar", "--end-of-options", revision, *rooms],
        cwd=root,
        capture_output=True,
        check=True,
    )
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")


def _find_environment(definition: Path, root: Path) -> None:
    """Lead the pack to the checkout's virtual environment, which it names beside itself."""
    document = load_yaml(definition.read_text(encoding="utf-8"))
    options = document["runtime"]["options"]
    options["virtualenv"] = str((root / POLICY / options["virtualenv"]).resolve())
    definition.write_text(yaml.safe_dump(document), encoding="utf-8")
