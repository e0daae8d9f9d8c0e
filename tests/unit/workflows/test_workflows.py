"""The workflows as their forges and their scanners read them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner

from tpustack.ci.pipeline import load_pipeline
from tpustack.project import root

BIN = Path(sys.executable).parent
FOLDER = root() / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
PREPARE = root() / ".github" / "actions" / "prepare" / "action.yml"
# What `tpustack new` gives to projects of users, with the same actions.
USERS = root() / "infra" / "tpu_infra" / "template" / ".github"
THEIRS = sorted(USERS.glob("workflows/*.yml"))
THEIR_PREPARE = USERS / "actions" / "prepare" / "action.yml"
# The ones that test a request and make a release; the others are the pipeline of the stacks.
TEST, RELEASE = FOLDER / "test.yml", FOLDER / "release.yml"
GITLAB = root() / "ci" / "gitlab.yml"
WRITE = {"contents", "actions", "checks", "packages", "security-events", "statuses"}


def run(*command: str | Path) -> str:
    """Runs a scanner, and fails with what it found."""
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command, cwd=root(), env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def keeps_to_schema(schema: str, *arguments: str | Path) -> None:
    """Fails with what check-jsonschema finds, without a process for each file."""
    command = ["--builtin-schema", f"vendor.{schema}", *map(str, arguments)]
    done = CliRunner().invoke(check_jsonschema, command)
    assert done.exit_code == 0, done.output


def document(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in document(path)["jobs"].values():
        yield from job.get("steps", [])


@pytest.mark.slow
def test_actionlint_finds_nothing() -> None:
    # With ShellCheck from this project's own environment for the scripts in the steps.
    run(sys.executable, "tools/scan.py", "actionlint", "-no-color", *WORKFLOWS, *THEIRS)


def test_zizmor_finds_nothing() -> None:
    # As its strictest persona; .github/zizmor.yml has the exceptions and their reasons.
    run(BIN / "zizmor", "--offline", "--no-progress", "--persona", "auditor", ".github", USERS)


def test_users_get_the_actions_that_the_pipeline_has() -> None:
    """The bot that proposes new ones sees those of this repository alone."""
    ours = {step["uses"] for path in WORKFLOWS for step in steps(path) if "uses" in step}
    ours |= {step["uses"] for step in document(PREPARE)["runs"]["steps"] if "uses" in step}
    theirs = {step["uses"] for path in THEIRS for step in steps(path) if "uses" in step}
    theirs |= {step["uses"] for step in document(THEIR_PREPARE)["runs"]["steps"] if "uses" in step}
    assert theirs
    assert theirs <= ours


@pytest.mark.parametrize("path", THEIRS, ids=lambda path: path.name)
def test_users_get_the_pipeline_of_this_repository(path: Path) -> None:
    """Most of it as links; their deployment has the stacks of their pipeline."""
    if path.name == "deploy.yml":
        ours, theirs = document(FOLDER / path.name), document(path)
        stacks = load_pipeline(USERS.parent).stacks
        assert list(theirs["jobs"]) == ["reviewed", *stacks]
        jobs = {name: ours["jobs"][name] for name in theirs["jobs"]}
        assert theirs == {**ours, "jobs": jobs}
    elif path.name != "check.yml":
        assert path.resolve() == FOLDER / path.name


def test_users_get_the_engine_of_this_repository_by_its_digest() -> None:
    step = document(THEIR_PREPARE)["runs"]["steps"][-1]
    line = f"{step['env']['DIGEST']}  {step['env']['ARCHIVE']}\n"
    assert line in (root() / "tools" / "toolchain" / "digests.txt").read_text(encoding="utf-8")
    version = re.findall(r'"pulumi==(.*)"', (root() / "pyproject.toml").read_text(encoding="utf-8"))
    assert [step["env"]["ARCHIVE"]] == [f"pulumi-v{version[0]}-linux-x64.tar.gz"]
    ours, theirs = (document(path)["inputs"] for path in (PREPARE, THEIR_PREPARE))
    assert ours == theirs


@pytest.mark.parametrize("name", ["preview", "deploy", "drift", "limits", "sweep"])
def test_before_the_pipeline_is_set_up_what_starts_by_itself_is_skipped(name: str) -> None:
    """Then there is no variable PIPELINE, and `fromJSON` of nothing fails."""
    jobs = document(FOLDER / f"{name}.yml")["jobs"].values()
    conditions = [str(job.get("if", "")) for job in jobs if "needs" not in job]
    assert all("vars.PIPELINE" in condition for condition in conditions)
    assert not any("fromJSON(vars.PIPELINE)" in condition for condition in conditions)


def test_the_pipeline_of_gitlab_keeps_to_its_schema() -> None:
    keeps_to_schema("gitlab-ci", "--data-transform", "gitlab-ci", GITLAB)


def test_the_bot_that_proposes_new_actions_keeps_to_its_schema_and_waits() -> None:
    file = root() / ".github" / "dependabot.yml"
    keeps_to_schema("dependabot", file)
    updates = document(file)["updates"]
    kinds = [each["package-ecosystem"] for each in updates]
    assert kinds == ["github-actions", "pip", "gomod"]
    assert all(each["cooldown"]["default-days"] >= 7 for each in updates)
    keeps_to_schema("renovate", root() / "renovate.json")


@pytest.mark.parametrize(
    "path", [p for p in WORKFLOWS if p not in (TEST, RELEASE)], ids=lambda path: path.name
)
def test_workflows_of_the_pipeline_only_call_its_command(path: Path) -> None:
    scripts = [step["run"] for step in steps(path) if "run" in step]
    assert all(
        re.fullmatch(r"\.venv/bin/tpustack ci [^|]*( \|\| \[ \$\? -eq [34] \])?", script)
        for script in scripts
    ), scripts


@pytest.mark.parametrize("path", [*WORKFLOWS, *THEIRS, PREPARE, THEIR_PREPARE], ids=str)
def test_actions_are_pinned_by_commit_with_their_version_beside(path: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", path.read_text(encoding="utf-8"))
    for action, rest in used:
        assert action.startswith("./") or (
            re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) and re.match(r" # v\d", rest)
        ), action


@pytest.mark.parametrize("path", [p for p in WORKFLOWS if p != RELEASE], ids=lambda p: p.name)
def test_no_job_may_do_more_than_it_needs(path: Path) -> None:
    workflow = document(path)
    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        rights = job["permissions"]
        assert all(rights.get(right, "read") == "read" for right in WRITE), name
        # Anyone who may act as an account of Google's may not write to the repository, too, and
        # the other way round. Called workflows have jobs of their own.
        writes = {right for right, kind in rights.items() if kind == "write"}
        assert "uses" in job or len(writes) <= 1, name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_no_run_is_cut_off_while_it_writes(path: Path) -> None:
    workflow = document(path)
    for job in [workflow, *workflow["jobs"].values()]:
        concurrency = job.get("concurrency")
        if concurrency and concurrency["cancel-in-progress"]:
            assert not any("deploy" in step.get("run", "") for step in steps(path))
    for name, job in workflow["jobs"].items():
        assert "uses" in job or job["timeout-minutes"] <= 90, name


def test_requests_are_tested_by_the_targets_of_the_makefile_with_a_token_that_only_reads() -> None:
    jobs = document(TEST)["jobs"]
    targets = set(jobs["compatibility"]["strategy"]["matrix"]["target"])
    for step in steps(TEST):
        targets |= set(re.findall(r"^make ([a-z]+)$", step.get("run", "")))
    scans, slow = {"audit", "sbom", "secrets"}, {"frameworks", "soak"}
    assert targets == {"lint", "site", "test", "oldest", "newest", "next", *slow, *scans}
    makefile = (root() / "Makefile").read_text(encoding="utf-8")
    assert targets <= set(re.findall(r"^([a-z]+):", makefile, re.M))
    assert all(job["permissions"] == {"contents": "read"} for job in jobs.values())
    assert "secrets." not in TEST.read_text(encoding="utf-8")


def test_the_hooks_before_a_commit_check_the_types_of_what_make_lint_checks() -> None:
    (hooks,) = document(root() / ".pre-commit-config.yaml")["repos"]
    assert hooks["repo"] == "local"
    entries = {hook["id"]: hook["entry"] for hook in hooks["hooks"]}
    assert all(entry.startswith(".venv/bin/python -m ") for entry in entries.values())
    makefile = (root() / "Makefile").read_text(encoding="utf-8")
    (sources,) = re.findall(r"^SOURCES := (.*)$", makefile, re.M)
    packages = ((source, f"{source}/tpu_{source}") for source in sources.split())
    checked = (package if (root() / package).exists() else source for source, package in packages)
    assert entries["mypy"] == f".venv/bin/python -m mypy {' '.join(checked)}"


@pytest.mark.parametrize(
    "form",
    sorted((root() / ".github" / "ISSUE_TEMPLATE").glob("*.yml")),
    ids=lambda form: form.name,
)
def test_a_form_for_issues_keeps_to_its_schema(form: Path) -> None:
    kind = "config" if form.stem == "config" else "forms"
    keeps_to_schema(f"github-issue-{kind}", form)


def test_stacks_are_deployed_in_the_order_of_the_pipelines_settings() -> None:
    order = list(load_pipeline(root()).stacks)
    jobs = document(FOLDER / "deploy.yml")["jobs"]
    assert [name for name in jobs if name != "reviewed"] == order
    for before, after in pairwise(order):
        assert before in jobs[after]["needs"]
    gitlab = document(GITLAB)
    assert [name for name in gitlab if name.startswith("deploy ")] == [f"deploy {s}" for s in order]
    for before, after in pairwise(order):
        assert {"job": f"deploy {before}", "artifacts": False} in gitlab[f"plan {after}"]["needs"]


def test_the_plan_that_counts_is_made_by_trusted_code_before_the_approval() -> None:
    jobs = document(FOLDER / "deploy-stack.yml")["jobs"]
    plan, deploy = jobs["plan"], jobs["deploy"]
    # The approval of the environment stands between the two; the plan itself waits for no one.
    assert deploy["needs"] == "plan"
    assert (plan.get("environment"), deploy["environment"]) == (None, "${{ inputs.stack }}")
    (made,) = [step["with"] for step in plan["steps"] if "upload-artifact" in step.get("uses", "")]
    (taken,) = [
        step["with"] for step in deploy["steps"] if "download-artifact" in step.get("uses", "")
    ]
    # Without a run's ID, GitHub takes what this very run has left.
    assert taken == {"name": made["name"], "path": "build/plan"}
    (script,) = [step["run"] for step in deploy["steps"] if "run" in step]
    assert "--plans build/plan" in script
    gitlab = document(GITLAB)
    for stack in load_pipeline(root()).stacks:
        assert gitlab[f"deploy {stack}"]["needs"] == [f"plan {stack}"]
        assert "environment" not in gitlab[f"plan {stack}"]


@pytest.mark.parametrize("name", ["deploy-stack.yml", "gitlab"])
def test_after_a_merge_the_rules_are_those_from_before_it(name: str) -> None:
    path = GITLAB if name == "gitlab" else FOLDER / name
    scripts = re.findall(r"tpustack ci (?:preview|deploy) --stack .*", path.read_text("utf-8"))
    assert len(scripts) == 2
    assert all('${BEFORE:+--policies-of "$BEFORE"' in script for script in scripts)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_job_that_may_write_takes_nothing_that_another_job_has_kept(path: Path) -> None:
    """A cache of a request's run is read by its other jobs, whatever code they run."""
    for name, job in document(path)["jobs"].items():
        writes = {"pull-requests", "issues"} & {
            right for right, kind in job["permissions"].items() if kind == "write"
        }
        prepared = [
            step for step in job.get("steps", []) if step.get("uses", "").endswith("prepare")
        ]
        assert not writes or all(step["with"] == {"engine": "false"} for step in prepared), name


ENVIRONMENTS = r"fromJSON\(vars\.PIPELINE\)\.environments(?:\[([\w.]+)\]|\.(\w+))\.(\w+)"


@pytest.mark.parametrize(
    "path", [p for p in WORKFLOWS if p not in (TEST, RELEASE)], ids=lambda path: path.name
)
def test_a_job_becomes_the_deployer_of_the_environment_that_it_runs_in_and_of_no_other(
    path: Path,
) -> None:
    for name, job in document(path)["jobs"].items():
        named = re.findall(ENVIRONMENTS, yaml.safe_dump(job, width=1000))
        accounts = {account for *_, account in named} - {"backend_url"}
        of = {computed or said for computed, said, _ in named}
        environment = re.sub(r"\$\{\{ (.*) \}\}", r"\1", str(job.get("environment", "")))
        if "deployer" in accounts:
            assert of == {environment}, name
        # Who runs a request's code without an approval reads, at most.
        assert accounts <= ({"deployer"} if environment else {"previewer"}), name
        provider = "deploy_provider" if environment else "preview_provider"
        assert set(re.findall(r"(\w+_provider) \}", yaml.safe_dump(job))) <= {provider}, name


def test_both_forges_run_the_same_commands() -> None:
    def commands(text: str) -> set[str]:
        return set(re.findall(r"tpustack ci (\w+)", text))

    github = set().union(*(commands(path.read_text(encoding="utf-8")) for path in WORKFLOWS))
    assert commands(GITLAB.read_text(encoding="utf-8")) == github
    assert github >= {"preview", "deploy", "drift", "sweep", "destroy", "comment", "issue"}
