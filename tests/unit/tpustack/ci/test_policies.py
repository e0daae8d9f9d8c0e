"""The rules of the target branch judge a change, whatever it does to them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tpustack.ci.pipeline import rules_note, rules_of
from tpustack.errors import UsageError


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    subprocess.run(("git", *identity, *arguments), cwd=folder, check=True, capture_output=True)


def commit(folder: Path, rules: str | None) -> None:
    pack = folder / "policy"
    if rules is not None:
        pack.mkdir(exist_ok=True)
        (pack / "rules.py").write_text(rules)
        definition = {"runtime": {"name": "python", "options": {"virtualenv": "../.venv"}}}
        (pack / "PulumiPolicy.yaml").write_text(yaml.safe_dump(definition))
    (folder / "infra").mkdir(exist_ok=True)
    (folder / "infra" / "prices.py").write_text(f"# for {rules}")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=c")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Without rules, then with one, then with none left."""
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    commit(tmp_path, None)
    commit(tmp_path, "RULES = (no_spot,)")
    commit(tmp_path, "RULES = ()")
    return tmp_path


def test_the_rules_of_a_revision_are_asked_with_all_that_they_import(repository: Path) -> None:
    with rules_of(repository, "HEAD~") as pack:
        assert pack is not None
        assert (pack / "rules.py").read_text() == "RULES = (no_spot,)"
        assert (pack.parent / "infra" / "prices.py").read_text() == "# for RULES = (no_spot,)"
        definition = yaml.safe_load((pack / "PulumiPolicy.yaml").read_text())
        environment = definition["runtime"]["options"]["virtualenv"]
        assert environment == str(repository / ".venv")
    assert not pack.exists()
    assert "this change also touches `policy/`" in rules_note(repository, "HEAD~")


def test_without_a_revision_it_is_the_checkouts_own_pack(repository: Path) -> None:
    with rules_of(repository, None) as pack:
        assert pack is None
    assert rules_note(repository, None) == rules_note(repository, "HEAD") == ""


def test_a_revision_without_rules_asks_none(repository: Path) -> None:
    with rules_of(repository, "HEAD~2") as pack:
        assert pack is not None
        assert not pack.exists()


@pytest.mark.parametrize("revision", ["--output=pwned", "-o", "nosuch", "", "HEAD:policy/x", "a b"])
def test_an_invalid_revision_is_refused_and_never_an_option_of_git(
    repository: Path, revision: str
) -> None:
    with pytest.raises(UsageError, match="failed"), rules_of(repository, revision):
        pass
    with pytest.raises(UsageError, match="failed"):
        rules_note(repository, revision)
    assert not (repository / "pwned").exists()
