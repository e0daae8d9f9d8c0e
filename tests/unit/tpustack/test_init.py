"""`tpustack init`: a new stack in one command, asked or told."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import yaml
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.examples import examples
from tpu_infra.catalog import Catalog
from tpustack import console, stacks
from tpustack.commands import init
from tpustack.commands.init import Answers, problems_of

from .conftest import REPOSITORY, Pulumi, Run

pytestmark = pytest.mark.usefixtures("pulumi")

CATALOG = Catalog()
TypeIn = Callable[..., None]
PLACES = [(tpu.name, zone) for tpu in CATALOG.accelerators.values() for zone in tpu.zones]
TOLD = ["--project", "my-project", "--zone", "us-central1-b"]
TOLD += ["--accelerator-type", "v2-8", "--capacity", "spot"]
HOME = ["--backend", "file", "--secrets-provider", "passphrase"]


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch) -> TypeIn:
    """A terminal on which these lines are typed."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def lines(*answers: str) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal("".join(f"{line}\n" for line in answers)))

    return lines


def config_of(project: Path, stack: str) -> dict[str, object]:
    text = (project / "stacks" / f"Pulumi.{stack}.yaml").read_text(encoding="utf-8")
    config: dict[str, object] = yaml.safe_load(text)["config"]
    return config


def test_the_capacity_that_needs_one_more_setting_says_which(project: Path, run: Run) -> None:
    done = run("init", "mine", *TOLD[:-1], "flex-start", *HOME)
    assert done.code == 2
    assert "flex-start needs tpu.queued.runHours, which this command doesn't set" in done.err
    assert not (project / "stacks" / "Pulumi.mine.yaml").exists()


def test_options_alone_make_a_stack_that_passes_the_check(
    project: Path, run: Run, pulumi: Pulumi
) -> None:
    done = run("init", "mine", *TOLD, *HOME, "--data", ".demo/data")
    assert done.code == 0
    assert done.out.splitlines() == [
        "stacks/Pulumi.mine.yaml is written. It costs $1.46 an hour.",
        "warning: unverified on real hardware: training.runOn: vm (the default) with "
        "tpu-vm-tf-2.16.1-pod-se. Google documents runOn: tpu; set either one to hide this "
        "warning. Details: docs/verification.md#vm-drives-a-tpu-vm",
        "tpu-vm-tf-2.16.1-pod-se has TensorFlow 2.16.1: test your model with that version.",
        "The stack mine is made and selected; its state is in ~/.pulumi.",
        "Next:",
        "  pulumi preview",
        "  pulumi up",
    ]
    assert config_of(project, "mine") == {
        "gcp:project": "my-project",
        "tpu-stack:owner": "ada",
        "tpu-stack:zone": "us-central1-b",
        "tpu-stack:tpu": {
            "acceleratorType": "v2-8",
            "runtimeVersion": "tpu-vm-tf-2.16.1-pod-se",
            "capacity": "spot",
        },
        "tpu-stack:training": {"data": ".demo/data"},
        "tpu-stack:limits": {"timeToLiveHours": 12, "idleMinutes": 30},
        "tpu-stack:bucket": {"forceDestroy": True, "softDeleteDays": 0},
    }
    assert pulumi.commands == [
        ("login", f"file://{Path.home()}"),
        ("stack", "init", "mine", "--secrets-provider=passphrase"),
    ]
    assert run("check", "--stack", "mine").code == 0


@pytest.mark.parametrize(
    ("tpu", "runtime"),
    [
        ("v5litepod-4", "tpu-vm-tf-2.16.1-pjrt"),
        ("v5litepod-16", "tpu-vm-tf-2.16.1-pod-pjrt"),
        ("v2-8", "tpu-vm-tf-2.16.1-se"),
    ],
)
def test_a_trainer_on_the_tpu_vm_gets_the_runtime_that_google_documents_for_it(
    project: Path, run: Run, pulumi: Pulumi, tpu: str, runtime: str
) -> None:
    zone = "us-central1-b" if tpu == "v2-8" else "us-central1-a"
    told = ["--project", "my-project", "--zone", zone, "--accelerator-type", tpu]
    done = run("init", "mine", *told, "--capacity", "spot", *HOME, "--run-on", "tpu")
    assert done.code == 0, done.err
    config = config_of(project, "mine")
    assert config["tpu-stack:training"] == {"runOn": "tpu"}
    assert config["tpu-stack:tpu"]["runtimeVersion"] == runtime  # type: ignore[index]
    assert run("check", "--stack", "mine").code == 0


@pytest.mark.parametrize(
    ("host", "zone"), [("ct6e-standard-4t", "us-east5-a"), ("tpu7x-standard-4t", "us-central1-c")]
)
def test_a_machine_type_makes_a_stack_of_compute_engine_for_jobs(
    project: Path, run: Run, pulumi: Pulumi, host: str, zone: str
) -> None:
    told = ["--project", "my-project", "--zone", zone, "--accelerator-type", host]
    done = run("init", "mine", *told, "--capacity", "spot", *HOME)
    assert done.code == 0, done.err
    assert config_of(project, "mine") == {
        "gcp:project": "my-project",
        "tpu-stack:owner": "ada",
        "tpu-stack:architecture": "compute",
        "tpu-stack:zone": zone,
        "tpu-stack:tpu": {"acceleratorType": host, "capacity": "spot"},
        "tpu-stack:training": {"runOn": "tpu"},
        "tpu-stack:limits": {"timeToLiveHours": 12},
        "tpu-stack:bucket": {"forceDestroy": True, "softDeleteDays": 0},
        "tpu-stack:jobs": {"enabled": True},
    }
    assert run("check", "--stack", "mine").code == 0


def test_a_vm_that_drives_a_machine_of_compute_engine_is_refused(project: Path, run: Run) -> None:
    told = ["--project", "my-project", "--zone", "us-east5-a", "--capacity", "spot", *HOME]
    done = run("init", "mine", *told, "--accelerator-type", "ct6e-standard-4t", "--run-on", "vm")
    assert done.code == 2
    assert 'training.runOn: "vm" is for a VM that drives the TPU' in done.err


def test_git_ignores_a_personal_stack_file(project: Path, run: Run) -> None:
    assert run("init", "mine", *TOLD, *HOME).code == 0
    ignored = ["git", "check-ignore", "--quiet", "--no-index", "stacks/Pulumi.mine.yaml"]
    assert subprocess.run(ignored, cwd=REPOSITORY, check=False).returncode == 0


@pytest.mark.parametrize(
    ("login", "stack", "owner"),
    [
        ("ada", "mine", "ada"),
        ("Ada.Lovelace@example.com", "mine", "ada-lovelac"),
        ("ada", "first-year", "ada"),
        ("ada", "canada", "ada"),
        ("augusta", "a-longer-stack", "a"),
    ],
)
def test_the_owner_is_the_login_name_cut_to_fit(
    project: Path,
    run: Run,
    pulumi: Pulumi,
    monkeypatch: pytest.MonkeyPatch,
    login: str,
    stack: str,
    owner: str,
) -> None:
    monkeypatch.setenv("LOGNAME", login)
    assert run("init", stack, *TOLD, *HOME).code == 0
    assert config_of(project, stack)["tpu-stack:owner"] == owner
    assert run("check", "--stack", stack).code == 0


@pytest.mark.parametrize("stack", ["dev-ada", "ada"])
def test_a_stack_name_with_the_login_name_needs_no_owner(
    project: Path, run: Run, pulumi: Pulumi, stack: str
) -> None:
    assert run("init", stack, *TOLD, *HOME).code == 0
    assert "tpu-stack:owner" not in config_of(project, stack)


def test_a_stack_of_the_whole_team_has_no_owner(project: Path, run: Run, pulumi: Pulumi) -> None:
    assert run("init", "mine", *TOLD, *HOME, "--owner", "").code == 0
    assert "tpu-stack:owner" not in config_of(project, "mine")


def test_a_wrong_owner_is_refused(project: Path, run: Run, pulumi: Pulumi) -> None:
    done = run("init", "mine", *TOLD, *HOME, "--owner", "Ada Lovelace")
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert done.err.startswith('error: owner: "Ada Lovelace"')


def test_missing_options_are_asked_until_the_answer_is_valid(
    project: Path, run: Run, type_in: TypeIn, pulumi: Pulumi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(init.PASSPHRASE_VARIABLE)
    monkeypatch.setattr(click.termui, "hidden_prompt_func", lambda _: "typed")
    place = ("europe-west4-b", "v2-8", "v5litepod-4")
    state = ("s3://bucket", "file", "gcpkms://key", "passphrase")
    type_in("Bad Project", "my-project", "mars", *place, "spot", "nowhere", ".demo/data", *state)
    done = run("init", "mine")
    assert done.code == 0
    assert 'gcp:project: "Bad Project" is not a project ID' in done.err
    assert 'zone: "mars" has no TPUs.' in done.err
    assert "TPUs in europe-west4-b: v5litepod-1, v5litepod-4" in done.out
    assert "spot: $1.78 an hour" in done.out
    assert 'training.data: "nowhere" doesn\'t exist.' in done.err
    assert '--backend: "s3://bucket" is not a place for Pulumi\'s state.' in done.err
    assert '--secrets-provider: "gcpkms://key" encrypts no secrets here.' in done.err
    config = config_of(project, "mine")
    assert config["tpu-stack:zone"] == "europe-west4-b"
    assert config["tpu-stack:training"] == {"data": ".demo/data"}
    tpu = config["tpu-stack:tpu"]
    assert isinstance(tpu, dict)
    assert (tpu["acceleratorType"], tpu["capacity"]) == ("v5litepod-4", "spot")
    assert pulumi.variables == {init.PASSPHRASE_VARIABLE: "typed"}


def test_backend_and_passphrase_of_the_environment_are_used_without_a_login(
    project: Path, run: Run, pulumi: Pulumi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULUMI_BACKEND_URL", "s3://of-the-team")
    assert run("init", "mine", *TOLD).code == 0
    assert pulumi.commands == [("stack", "init", "mine", "--secrets-provider=passphrase")]
    refused = run("init", "other", *TOLD, *HOME)
    assert refused.code == 2
    assert '--backend: "file" is not what PULUMI_BACKEND_URL says (s3://of-the-te' in refused.err


def test_a_missing_passphrase_file_is_created_readable_by_its_owner_only(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(init.PASSPHRASE_VARIABLE)
    path = project / "new" / "passphrase"
    monkeypatch.setenv(init.PASSPHRASE_FILE, str(path))
    done = run("init", "mine", *TOLD, *HOME)
    assert done.code == 0
    assert (
        f"Wrote a new passphrase to {path}. Keep it: every change of the stack needs it."
        in done.out
    )
    made = path.read_text(encoding="utf-8")
    assert len(made.strip()) > 30
    assert path.stat().st_mode & 0o777 == 0o600
    assert run("init", "next", *TOLD, *HOME).code == 0
    assert path.read_text(encoding="utf-8") == made


def test_a_key_needs_no_passphrase(
    project: Path, run: Run, pulumi: Pulumi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(init.PASSPHRASE_VARIABLE)
    key = "gcpkms://projects/p/locations/us-central1/keyRings/r/cryptoKeys/secrets"
    done = run("init", "mine", *TOLD, "--backend", "file", "--secrets-provider", key)
    assert done.code == 0
    assert pulumi.commands[-1] == ("stack", "init", "mine", f"--secrets-provider={key}")


def test_a_refusal_of_the_engine_removes_the_stack_file(
    project: Path, run: Run, pulumi: Pulumi
) -> None:
    pulumi.refused = "login"
    done = run("init", "mine", *TOLD, *HOME)
    assert done.code == 1
    assert "error: `pulumi login file:///" in done.err
    pulumi.refused = ""
    assert run("init", "mine", *TOLD, *HOME).code == 0


def test_an_interruption_while_pulumi_is_fetched_removes_the_stack_file(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object) -> None:
        raise console.Interrupted(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(init, "_pulumi", end)
        run("init", "mine", *TOLD, *HOME)
    assert not stacks.path_of("mine").exists()
    assert run("init", "mine", *TOLD, *HOME).code == 0


def test_what_check_warns_of_is_said_before_anything_is_paid(project: Path, run: Run) -> None:
    told = [*TOLD[:2], "--zone", "us-east5-a", "--accelerator-type", "v6e-8", "--capacity", "spot"]
    done = run("init", "mine", *told, *HOME, "--run-on", "tpu")
    assert "users report that TensorFlow fails on v6e" in done.out


def test_a_wrong_machine_type_is_answered_with_those_most_like_it(project: Path, run: Run) -> None:
    done = run("init", "mine", *TOLD[:2], "--accelerator-type", "ct6e-standard-9t", *HOME)
    assert "Use ct6e-standard-8t, ct6e-standard-4t or ct6e-standard-1t." in done.err


def test_a_wrong_option_is_refused_before_anything_is_asked(
    project: Path, run: Run, type_in: TypeIn
) -> None:
    type_in("my-project")
    done = run("init", "mine", "--zone", "mars", "--accelerator-type", "v2-8")
    assert done.code == 2
    assert done.err.startswith('error: zone: "mars" has no TPUs.')
    assert len(done.err.splitlines()) == 1
    assert done.out == ""


def test_an_end_of_input_writes_nothing(project: Path, run: Run, type_in: TypeIn) -> None:
    type_in("my-project")
    done = run("init", "mine")
    assert done.code == 1
    assert "the question has no answer" in done.err
    assert not stacks.path_of("mine").exists()


def test_only_zones_that_have_the_type_are_offered(
    project: Path, run: Run, type_in: TypeIn
) -> None:
    type_in("us-central1-b", "europe-west4-a")
    told = [*TOLD[:2], "--accelerator-type", "v3-32", "--capacity", "spot", *HOME, "--data", ""]
    done = run("init", "mine", *told)
    assert done.code == 0
    assert "Zones with TPUs: europe-west4-a\n" in done.out
    assert 'zone: "us-central1-b" offers no v3-32.' in done.err


def test_without_a_terminal_missing_options_are_refused(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    done = run("init", "mine", "--zone", "us-central1-b")
    assert done.code == 2
    missing = "--project, --accelerator-type, --capacity, --backend"
    assert f"{missing}: (not set) and there is no terminal to ask on" in done.err
    assert "--accelerator-type v5litepod-4 --capacity spot --backend file" in done.err
    assert not stacks.path_of("mine").exists()
    done = run("init", "mine", "--project", "My Project", "--zone", "mars-north1-a")
    assert 'gcp:project: "My Project" is not a project ID' in done.err
    assert 'zone: "mars-north1-a" has no TPUs' in done.err
    assert "--accelerator-type, --capacity, --backend: (not set)" in done.err
    monkeypatch.delenv(init.PASSPHRASE_VARIABLE)
    done = run("init", "mine", *TOLD, *HOME)
    assert done.code == 2
    assert "PULUMI_CONFIG_PASSPHRASE: (not set) and there is no terminal to ask on" in done.err


def test_an_existing_stack_file_is_never_overwritten(project: Path, run: Run) -> None:
    before = stacks.path_of("dev").read_bytes()
    done = run("init", "dev", *TOLD)
    assert done.code == 2
    assert "stacks/Pulumi.dev.yaml is there already" in done.err
    assert stacks.path_of("dev").read_bytes() == before


def test_a_stack_file_that_appears_while_init_asks_is_kept(
    project: Path, run: Run, pulumi: Pulumi, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stacks.path_of("mine")

    def asks(*_: object) -> tuple[str, str, None]:
        path.write_text("theirs", encoding="utf-8")
        return "file", "passphrase", None

    monkeypatch.setattr(init, "_home", asks)
    done = run("init", "mine", *TOLD, *HOME)
    assert (done.code, path.read_text(encoding="utf-8")) == (2, "theirs")
    assert "stacks/Pulumi.mine.yaml is there already" in done.err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("BIG", 'NAME: "BIG" can\'t begin names: it would be'),
        ("a-very-long-name-of-a-stack", "has 40 (6 to 30)"),
        ("-", "can't begin names"),
        ("../up", '"../up" is no name of a stack'),
    ],
)
def test_an_impossible_name_is_refused_before_any_question(
    name: str, message: str, project: Path, run: Run
) -> None:
    done = run("init", *TOLD, *HOME, "--", name)
    assert done.code == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_all_wrong_options_are_named_at_once_and_nothing_is_written(
    project: Path, run: Run
) -> None:
    wrong = "--project X --zone us-central1 --accelerator-type v2-9 --capacity spot"
    place = "--data nowhere --backend ftp://x --secrets-provider rot13"
    done = run("init", "mine", *wrong.split(), *place.split())
    assert done.code == 2
    assert [line.split(":")[0] for line in done.err.removeprefix("error: ").splitlines()] == [
        "gcp",
        "zone",
        "tpu.acceleratorType",
        "training.data",
        "--backend",
        "--secrets-provider",
    ]
    assert not stacks.path_of("mine").exists()


@given(place=st.sampled_from(PLACES), capacity=st.sampled_from(["on-demand", "spot", "reserved"]))
@settings(max_examples=examples(200))
def test_everything_that_the_catalog_offers_is_accepted(
    place: tuple[str, str], capacity: str
) -> None:
    name, zone = place
    assert problems_of("mine", Answers("my-project", zone, name, capacity), CATALOG) == []


@given(project=st.text(max_size=40))
@settings(
    max_examples=examples(50),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_project_is_accepted_or_refused_with_a_whole_sentence(project: str) -> None:
    answers = Answers(project, "us-central1-b", "v2-8", "spot")
    for problem in problems_of("mine", answers, CATALOG):
        assert str(problem).endswith((".", "?"))
        assert json.dumps(problem.cure)
