from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tpustack.ci.pipeline import changed_files, file_at, remote_branches, touched_stacks
from tpustack.errors import TpustackError, UsageError

STACKS = ("dev", "test", "staging", "prod")


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["stacks/Pulumi.staging.yaml"], ["staging"]),
        (["stacks/Pulumi.prod.yaml", "stacks/Pulumi.dev.yaml"], ["dev", "prod"]),
        (["stacks/Pulumi.local.yaml", "docs/cost.md", "tests/e2e/test_demo.py"], []),
        (["agent/tpu_agent/main.py"], list(STACKS)),
        (["core/tpu_core/tpu.py"], list(STACKS)),
        (["infra/tpu_infra/program.py"], list(STACKS)),
        (["policy/tpu_policy/rules.py"], list(STACKS)),
        (["training/tpu_training/__main__.py"], list(STACKS)),
        (["Pulumi.yaml"], list(STACKS)),
        (["stacks/pipeline.yaml"], list(STACKS)),
        # Of a project of `tpustack new`.
        (["__main__.py"], list(STACKS)),
        (["dist/tpu_stack-0.2.0-py3-none-any.whl"], list(STACKS)),
        (["plugin/pulumi-resource-pulumi-python"], list(STACKS)),
        ([], []),
    ],
)
def test_a_change_touches_the_stacks_that_are_made_of_it(
    paths: list[str], expected: list[str], tmp_path: Path
) -> None:
    assert touched_stacks(tmp_path, paths, STACKS) == expected


def test_of_a_clones_locks_only_the_one_for_deploying_touches_stacks(tmp_path: Path) -> None:
    lock = "requirements-deploy.txt"
    assert touched_stacks(tmp_path, ["requirements.txt"], STACKS) == list(STACKS)
    (tmp_path / lock).touch()
    assert touched_stacks(tmp_path, ["requirements.txt"], STACKS) == []
    assert touched_stacks(tmp_path, [lock], STACKS) == list(STACKS)


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--initial-branch=main")
    (tmp_path / "a b.txt").write_text("one")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--message=1")
    git(tmp_path, "switch", "--create", "work")
    return tmp_path


def test_later_commits_on_the_base_do_not_count_as_changes(
    repository: Path,
) -> None:
    (repository / "a b.txt").write_text("two")
    git(repository, "commit", "--all", "--message=2")
    git(repository, "switch", "main")
    (repository / "theirs.txt").write_text("theirs")
    git(repository, "add", "--all")
    git(repository, "commit", "--message=3")
    git(repository, "switch", "work")
    (repository / "not yet committed.txt").write_text("new")
    assert changed_files(repository, "main") == ["a b.txt", "not yet committed.txt"]
    assert file_at(repository, "main", "a b.txt") == "one"
    assert file_at(repository, "main", "theirs.txt") is None


def test_the_branches_of_a_remote_are_listed(repository: Path) -> None:
    assert remote_branches(repository, ".") == {"main", "work"}


def test_a_remote_that_lists_no_branches_is_an_error(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "init", "--bare", "empty.git")
    with pytest.raises(TpustackError, match=r"empty\.git lists no branches"):
        remote_branches(repository, str(tmp_path / "empty.git"))


def test_a_base_that_git_does_not_know_is_wrong_input(repository: Path) -> None:
    with pytest.raises(UsageError, match=r"origin/nosuch.*fetch depth 0"):
        changed_files(repository, "origin/nosuch")
