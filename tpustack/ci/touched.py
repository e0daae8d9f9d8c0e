"""Finds the stacks that a change touches, by asking git."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from tpustack.ci.settings import FILE
from tpustack.errors import UsageError

# All stacks are made of these. Other files (docs, tests, workflows) change no stack.
_ALL = ("infra/", "policy/", "training/")
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


def branches(root: Path, remote: str) -> set[str]:
    """Return the branches of a remote repository."""
    lines = _git(root, "ls-remote", "--heads", remote).splitlines()
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
