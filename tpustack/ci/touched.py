"""Finds the stacks that a change touches, by asking git."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from tpustack.ci.settings import FILE
from tpustack.errors import TpustackError, UsageError

# All stacks are made of these. Other files (docs, tests, workflows) change no stack.
_ALL = ("agent/", "core/", "infra/", "policy/", "training/")
_ALL_FILES = {"Pulumi.yaml", "requirements-deploy.txt", str(FILE)}


def touched(paths: Iterable[str], stacks: Sequence[str]) -> list[str]:
    """Return those of `stacks` that a change of the files `paths`, relative to the root, hits."""
    changed = set(paths)
    if changed & _ALL_FILES or any(path.startswith(_ALL) for path in changed):
        return list(stacks)
    return [stack for stack in stacks if f"stacks/Pulumi.{stack}.yaml" in changed]


def changed_files(root: Path, base: str) -> list[str]:
    """Return the files that differ from where the branch left `base`, uncommitted ones included."""
    merge_base = _git(root, "merge-base", base, "HEAD").strip()
    changed = _git(root, "diff", "--name-only", "--relative", "-z", merge_base, "--", ".")
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", ".")
    return [path for path in (changed + new).split("\0") if path]


def file_at(root: Path, base: str, path: str) -> str | None:
    """Return a file as it was where the branch left `base`; None if it was not there."""
    merge_base = _git(root, "merge-base", base, "HEAD").strip()
    if not _git(root, "ls-tree", merge_base, "--", path):
        return None
    return _git(root, "show", f"{merge_base}:./{path}")


def rooms_at(root: Path, revision: str, rooms: Sequence[str]) -> list[str]:
    """Return those of the folders that a revision has."""
    listed = _git(root, "ls-tree", "--name-only", "--end-of-options", revision, *rooms)
    return listed.splitlines()


def differs(root: Path, revision: str, folder: str) -> bool:
    """Return whether a folder is not what it was in a revision."""
    return bool(_git(root, "diff", "--name-only", "--end-of-options", revision, "--", folder))


def head(root: Path) -> str:
    """Return the commit that is checked out; empty outside git."""
    done = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", "HEAD"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def branches(root: Path, remote: str) -> set[str]:
    """Return the branches of a remote repository."""
    lines = _git(root, "ls-remote", "--heads", "--", remote).splitlines()
    if not lines:
        # Every stack of a request would look as if its branch were gone.
        raise TpustackError(f"the remote repository {remote} lists no branch at all")
    return {line.partition("refs/heads/")[2] for line in lines}


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise UsageError(
            f"`git {' '.join(arguments)}` failed: {done.stderr.strip() or 'no answer'}. "
            "The whole history must be there (in a pipeline: fetch depth 0)"
        )
    return done.stdout
