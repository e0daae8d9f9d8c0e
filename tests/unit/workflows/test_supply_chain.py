"""What is released, and what is installed: where it is from, and who says so."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tpustack.project import root

RELEASE: dict[str, Any] = yaml.safe_load(
    (root() / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
)
JOBS = RELEASE["jobs"]
CONTAINERFILE = (root() / "Containerfile").read_text(encoding="utf-8")
PUBLISHING = ("attest", "publish", "index", "pages", "registry")
FOLDERS = (
    "requirements*.txt",
    "agent/tpu_agent/locks/*.txt",
    "examples/*/requirements.txt",
    "infra/tpu_infra/template/requirements.txt",
)
LOCKS = [lock for names in FOLDERS for lock in root().glob(names)]


def used(job: str) -> list[str]:
    return [step["uses"].partition("@")[0] for step in JOBS[job]["steps"] if "uses" in step]


def writes(job: str) -> set[str]:
    return {right for right, kind in JOBS[job]["permissions"].items() if kind == "write"}


def test_what_runs_this_projects_code_signs_and_publishes_nothing() -> None:
    assert {job: writes(job) for job in JOBS} == {
        "build": set(),
        "site": set(),
        "attest": {"attestations", "id-token"},
        "publish": {"contents"},
        "index": {"id-token"},
        "pages": {"contents", "pages"},
        "images": set(),
        "registry": {"attestations", "id-token", "packages"},
    }
    for job in PUBLISHING:
        assert "actions/checkout" not in used(job)
    for job in ("attest", "index"):
        assert not any("run" in step for step in JOBS[job]["steps"])


def test_a_release_is_built_from_locks_alone_and_from_no_cache() -> None:
    assert used("build") == [
        "actions/checkout",
        "actions/setup-python",
        "actions/upload-artifact",
        "actions/upload-artifact",
    ]
    assert [step["run"] for step in JOBS["build"]["steps"] if "run" in step] == [
        "make release sbom",
        CHECK,
    ]


CHECK = 'cd dist && ! find . -name "*.tar.gz" ! -name "*-${TAG#v}.tar.gz" | grep .'


@pytest.mark.parametrize(
    ("tag", "code"), [("v0.2.0", 0), ("v0.2.1", 1), ("v0.2", 1), ("v10.2.0", 1)]
)
def test_a_tag_releases_the_version_that_it_names(tag: str, code: int, tmp_path: Path) -> None:
    """The index takes a version once."""
    (step,) = [step for step in JOBS["build"]["steps"] if step.get("run") == CHECK]
    assert step["env"] == {"TAG": "${{ github.ref_name }}"}
    (tmp_path / "dist").mkdir()
    for name in ("tpu_stack", "tpu_stack_core"):
        (tmp_path / "dist" / f"{name}-0.2.0.tar.gz").touch()
    shell = ["bash", "-e", "-c", CHECK]
    assert subprocess.run(shell, cwd=tmp_path, env={**os.environ, "TAG": tag}).returncode == code


@pytest.mark.parametrize("tag", ["v0.3.0a1", "v0.3.0b2", "v0.3.0rc1"])
def test_a_pre_release_is_the_latest_neither_of_the_site_nor_on_github(
    tag: str, tmp_path: Path
) -> None:
    left_out = re.findall(r"!contains\(github\.ref_name, '(\w+)'\)", JOBS["site"]["if"])
    assert any(part in tag for part in left_out)
    assert not any(part in "v0.3.0" for part in left_out)
    (step,) = [step for step in JOBS["publish"]["steps"] if "run" in step]
    (tmp_path / "gh").write_text('#!/bin/sh\necho "$@"\n', encoding="utf-8")
    (tmp_path / "gh").chmod(0o755)
    given = {"PATH": f"{tmp_path}:{os.defpath}", "TAG": tag, "GITHUB_REPOSITORY": "o/r"}
    shell = ["bash", "-e", "-c", step["run"]]
    assert f"release create {tag} --prerelease " in subprocess.check_output(
        shell, env=given, text=True
    )
    final = subprocess.check_output(shell, env=given | {"TAG": "v0.3.0"}, text=True)
    assert "--prerelease" not in final
    assert "release create v0.3.0 --repo o/r " in final


def test_a_pre_release_does_not_keep_a_release_before_it_from_being_the_latest(
    tmp_path: Path,
) -> None:
    told = os.environ | {"GIT_DIR": str(tmp_path)}
    identity = ["-c", "user.name=ada", "-c", "user.email=ada@example.com"]
    for command in (
        ["init", "--quiet", "--bare", str(tmp_path)],
        [*identity, "commit-tree", "-m", "one", "4b825dc642cb6eb9a060e54bf8d69288fbee4904"],
    ):
        said = subprocess.check_output(["git", *command], env=told, text=True)
    for tag in ("v0.1.9", "v0.2.0", "v0.3.0rc1"):
        subprocess.run(["git", "tag", tag, said.strip()], env=told, check=True)
    for version, alias in {"0.1": "", "0.2": " latest", "0.3": ""}.items():
        shown = subprocess.check_output(
            ["make", "--dry-run", "site", f"VERSION={version}"], cwd=root(), env=told, text=True
        )
        (deploying,) = re.findall(r"mike deploy .*", shown)
        assert deploying.rstrip().endswith(f"{version}{alias}"), deploying


def test_an_upload_that_stopped_half_way_is_continued_by_the_next_try() -> None:
    (upload,) = [step for step in JOBS["index"]["steps"] if "pypi-publish" in step["uses"]]
    assert upload["with"] == {"skip-existing": True}


def test_somebody_may_have_to_approve_before_anything_is_signed_or_published() -> None:
    """A pushed tag starts a release; what is signed is trusted wherever it lies."""
    assert {JOBS[name]["environment"] for name in PUBLISHING} == {"release"}
    # Of the repository alone any workflow of any branch can be the signer.
    for place in (".github/workflows/release.yml", "docs/ci-cd.md"):
        text = (root() / place).read_text(encoding="utf-8").partition("gh attestation verify")[2]
        assert "--signer-workflow OWNER/NAME/.github/workflows/release.yml" in text
        assert "--source-ref refs/tags/v" in text


def test_only_what_has_attestations_is_published() -> None:
    assert JOBS["attest"]["needs"] == "build"
    assert JOBS["publish"]["needs"] == JOBS["index"]["needs"] == "attest"
    assert JOBS["registry"]["needs"] == ["attest", "images"]
    signed = [step["with"] for step in JOBS["attest"]["steps"] if "attest" in step["uses"]]
    assert signed[0] == {"subject-path": "dist/*"}
    assert all(re.fullmatch(r"dist/[a-z]+\.cdx\.json", each["sbom-path"]) for each in signed[1:])


def test_each_image_of_the_containerfile_is_started_pushed_and_signed_by_its_digest() -> None:
    targets = re.findall(r"^FROM installed AS (\w+)$", CONTAINERFILE, re.MULTILINE)
    for job in ("images", "registry"):
        assert sorted(JOBS[job]["strategy"]["matrix"]["image"]) == sorted(targets)
    (build,) = [step["run"] for step in JOBS["images"]["steps"] if "run" in step]
    assert '--target "$IMAGE"' in build
    assert 'docker run --rm "$IMAGE" --version' in build
    (signed,) = [
        step["with"] for step in JOBS["registry"]["steps"] if "attest" in step.get("uses", "")
    ]
    outputs = {name: f"${{{{ steps.push.outputs.{name} }}}}" for name in ("name", "digest")}
    assert signed["subject-name"] == outputs["name"]
    assert signed["subject-digest"] == outputs["digest"]
    # The action reads only ~/.docker/config.json (its issue 253).
    (push,) = [step["run"] for step in JOBS["registry"]["steps"] if "run" in step]
    assert "docker login" in push


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_locked_package_has_hashes(lock: Any) -> None:
    text = lock.read_text(encoding="utf-8").replace("\\\n", " ")
    pins = [line for line in text.splitlines() if re.match(r"[A-Za-z0-9]", line)]
    assert pins
    assert [pin for pin in pins if not re.search(r"--hash=sha256:[0-9a-f]{64}", pin)] == []


def test_every_installation_by_the_makefile_the_tools_and_the_vm_asks_for_hashes() -> None:
    """What is built from this checkout needs none, and is the only thing without."""
    files = [root() / "Makefile", *(root() / "tools").rglob("*.py")]
    for file in files:
        text = file.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in text.splitlines():
            if re.search(r"pip install .*(-r|--requirement)\b", line):
                assert "--require-hashes" in line, f"{file.name}: {line.strip()}"
    script = (root() / "agent" / "tpu_agent" / "startup" / "common.sh").read_text(encoding="utf-8")
    assert "hashed=(--require-hashes --only-binary :all:)" in script
    for line in script.splitlines():
        if '--requirement "$lock"' in line:
            assert '"${hashed[@]}"' in line, line.strip()
    assert "sha256sum --check --status" in script


def test_the_audit_asks_about_every_lock_but_those_of_older_releases() -> None:
    command = ["make", "--dry-run", "--directory", str(root()), "audit"]
    asked = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    older = re.compile(r"locks/tensorflow-|requirements-oldest")
    locks = [str(lock.relative_to(root())) for lock in LOCKS]
    asked_about = re.split(r"[\s;]+", asked)
    assert [lock for lock in locks if not older.search(lock) and lock not in asked_about] == []


def test_an_advisory_that_is_passed_over_has_a_reason() -> None:
    lines = (root() / ".pip-audit.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        assert line.startswith("#") or re.fullmatch(r"[A-Z][A-Za-z0-9-]+ .{20,}", line), line
