"""`tpustack ssh`, `code` and `notebook`, with a gcloud that only remembers what it was told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from tests.unit.site.recorded import recorded
from tpu_infra.names import names_of
from tpustack import stacks
from tpustack.cloud import google
from tpustack.cloud.google import NotFound
from tpustack.commands import machines
from tpustack.errors import TpustackError

from .conftest import REPOSITORY, Run

# Its exit code is one that no error of ours has.
GCLOUD = f"""#!{sys.executable}
import json, os, sys
json.dump(sys.argv[1:], open(os.environ["RECORDED"], "w"))
sys.exit(7)
"""
Change = Callable[..., None]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What gcloud was told last; it is the only program on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "gcloud").write_text(GCLOUD, encoding="utf-8")
    (folder / "gcloud").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("RECORDED", str(tmp_path / "recorded"))

    def become(program: str, words: list[str]) -> NoReturn:
        # This process has more tests to run.
        raise SystemExit(subprocess.run(words, check=False).returncode)

    monkeypatch.setattr(os, "execvp", become)
    return lambda: list(json.loads((tmp_path / "recorded").read_text(encoding="utf-8")))


@pytest.fixture
def change(project: Path) -> Change:
    """Changes settings of stack `dev`, whose TPU is a TPU VM."""

    def write(**settings: Any) -> None:
        path = project / "stacks" / "Pulumi.dev.yaml"
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        changes = {f"tpu-stack:{name}": value for name, value in settings.items()}
        document["config"] |= changes
        path.write_text(yaml.safe_dump(document), encoding="utf-8")

    write(zone="us-central1-a", tpu={"acceleratorType": "v5litepod-16"})
    return write


def prefix() -> str:
    return names_of(stacks.load("dev"), "dev").prefix


def where(zone: str = "us-central1-a") -> list[str]:
    project = stacks.load("dev").project
    return [f"--project={project}", f"--zone={zone}", "--tunnel-through-iap"]


Told = Callable[[], list[str]]


def test_a_shell_on_the_vm_goes_through_iap(run: Run, change: Change, told: Told) -> None:
    assert run("ssh", "--stack", "dev").code == 7
    assert told() == ["compute", "ssh", f"{prefix()}-vm", *where()]


def test_a_command_runs_as_ssh_would_run_it(run: Run, change: Change, told: Told) -> None:
    assert run("ssh", "--stack", "dev", "--", "cd /tmp &&", "ls", "-l").code == 7
    assert told()[-1] == "--command=cd /tmp && ls -l"


def test_a_host_of_the_tpu_is_a_worker(run: Run, change: Change, told: Told) -> None:
    assert run("ssh", "--stack", "dev", "--tpu").code == 7
    ssh = ["alpha", "compute", "tpus", "tpu-vm", "ssh"]
    assert told() == [*ssh, f"{prefix()}-tpu", "--worker=0", *where()]
    run("ssh", "--stack", "dev", "--tpu", "--host", "3")
    assert told() == [*ssh, f"{prefix()}-tpu", "--worker=3", *where()]


def test_hosts_are_counted_over_all_slices(run: Run, change: Change, told: Told) -> None:
    change(tpu={"acceleratorType": "v5litepod-16", "slices": 2, "queued": {}})
    run("ssh", "--stack", "dev", "--tpu", "--host", "5")
    assert told()[5:7] == [f"{prefix()}-tpu-1", "--worker=1"]
    refused = run("ssh", "--stack", "dev", "--tpu", "--host", "8")
    assert (refused.code, refused.err) == (
        2,
        "error: --host 8: v5litepod-16 has 4 hosts in each of its 2 slices. Use a number from 0 to "
        "7\n",
    )


def test_a_machine_of_compute_engine_is_an_instance_in_the_tpus_zone(
    run: Run, change: Change, told: Told
) -> None:
    change(
        architecture="compute", zone="us-central1-ai1a", tpu={"acceleratorType": "ct6e-standard-4t"}
    )
    for tpu in ([], ["--tpu"]):
        run("ssh", "--stack", "dev", *tpu)
        assert told() == ["compute", "ssh", f"{prefix()}-tpu", *where("us-central1-ai1a")]
    refused = run("ssh", "--stack", "dev", "--tpu", "--host", "1").err
    assert refused == "error: --host 1: ct6e-standard-4t has 1 host. Use --host 0\n"


def test_machines_of_a_slice_on_compute_engine_are_numbered_as_google_does(
    run: Run, change: Change, told: Told
) -> None:
    change(
        architecture="compute",
        zone="us-central1-ai1a",
        tpu={"acceleratorType": "ct6e-standard-4t", "topology": "4x4"},
    )
    run("ssh", "--stack", "dev")
    assert told()[2] == f"{prefix()}-tpu-001"
    run("ssh", "--stack", "dev", "--tpu", "--host", "3")
    assert told() == ["compute", "ssh", f"{prefix()}-tpu-004", *where("us-central1-ai1a")]
    refused = run("ssh", "--stack", "dev", "--tpu", "--host", "4").err
    assert refused.endswith("Use a number from 0 to 3\n")


def test_the_vm_of_an_instance_group_has_the_groups_name_for_it(
    run: Run, change: Change, told: Told
) -> None:
    change(vm={"instanceGroup": {}})
    run("ssh", "--stack", "dev")
    assert told()[2] == f"{prefix()}-vm-0"


def test_the_vm_of_an_ai_zone_is_in_its_parent(run: Run, change: Change, told: Told) -> None:
    change(zone="us-central1-ai1a")
    run("ssh", "--stack", "dev")
    assert told()[4] == "--zone=us-central1-a"


@pytest.fixture
def google_answers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The zones that have a TPU."""
    zones: list[str] = []

    class Answers:
        def get(self, url: str) -> dict[str, str]:
            if not any(f"/{zone}/" in url for zone in zones):
                raise NotFound(url)
            return {}

    monkeypatch.setattr(google, "Google", Answers)
    return zones


def test_google_says_in_which_of_its_zones_a_queued_tpu_is(
    run: Run, change: Change, told: Told, google_answers: list[str]
) -> None:
    queued = {"fallbackZones": ["us-west4-a"]}
    change(tpu={"acceleratorType": "v5litepod-16", "queued": queued})
    google_answers.append("us-west4-a")
    run("ssh", "--stack", "dev", "--tpu")
    assert told()[7:9] == [where()[0], "--zone=us-west4-a"]
    google_answers.clear()
    refused = run("ssh", "--stack", "dev", "--tpu")
    assert refused.code == 1
    assert refused.err.startswith(
        f"error: no zone of us-central1-a, us-west4-a has the TPU {prefix()}-tpu: it isn't created"
    )


def test_a_classic_node_lets_nobody_in_but_its_vm_does(
    run: Run, change: Change, told: Told
) -> None:
    change(architecture="node", tpu={"acceleratorType": "v2-8"})
    refused = run("ssh", "--stack", "dev", "--tpu")
    assert refused.code == 2
    assert refused.err.startswith("error: architecture is node: Google lets no one log in to ")
    assert run("ssh", "--stack", "dev").code == 7


@pytest.mark.parametrize(
    ("tpu", "message"),
    [
        ({"acceleratorType": "v5litepod-8"}, "--host 1 is a host of the TPU, which needs --tpu"),
        ({"acceleratorType": "v99-8"}, "tpu.acceleratorType: v99-8 is no known type"),
    ],
)
def test_what_is_no_machine_is_refused_in_one_message(
    run: Run, change: Change, told: Told, tpu: dict[str, str], message: str
) -> None:
    change(tpu=tpu)
    option = ["--host", "1"] if "needs" in message else ["--tpu"]
    refused = run("ssh", "--stack", "dev", *option)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(f"error: {message}")


def test_the_firewall_of_a_network_of_ones_own_is_named(
    run: Run, change: Change, told: Told
) -> None:
    change(network={"create": False, "name": "shared"})
    said = run("ssh", "--stack", "dev")
    assert said.code == 7
    assert "network shared lets 35.235.240.0/20 (IAP) reach port 22" in said.err


def test_without_gcloud_one_message_says_where_to_get_it(
    run: Run, change: Change, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    refused = run("ssh", "--stack", "dev")
    assert refused.code == 1
    assert "there is no `gcloud` on PATH" in refused.err


def test_jupyter_comes_through_the_tunnel_to_this_machine_alone(
    run: Run, change: Change, told: Told
) -> None:
    said = run("notebook", "--stack", "dev", "--port", "9000")
    assert (said.code, "127.0.0.1:9000" in said.err) == (7, True)
    words = told()
    assert words[:3] == ["compute", "ssh", f"{prefix()}-vm"]
    assert words[words.index("--") + 1 :] == [
        *("-tt", "-L", "127.0.0.1:9000:127.0.0.1:9000", "-o", "ExitOnForwardFailure=yes")
    ]
    jupyter = words[words.index("--") - 1].splitlines()[-1]
    assert "--ip=127.0.0.1 --port=9000 --port-retries=0" in jupyter
    assert "token" not in " ".join(words)


@pytest.mark.parametrize(
    "arguments",
    [
        ("ssh",),
        ("ssh", "--", "uptime"),
        ("ssh", "--tpu", "--host", "1", "--", "uptime"),
        ("notebook",),
        ("notebook", "--tpu"),
    ],
)
def test_gcloud_itself_lists_every_flag_that_it_is_told(
    run: Run, change: Change, told: Told, arguments: tuple[str, ...]
) -> None:
    run(arguments[0], "--stack", "dev", *arguments[1:])
    assert recorded()["gcloud"].refusal(told()) is None


def test_the_process_becomes_gcloud(change: Change, told: Told, project: Path) -> None:
    shutil.copy(REPOSITORY / "Pulumi.yaml", project)
    command = [sys.executable, "-m", "tpustack", "ssh", "--stack", "dev", "--", "uptime"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (7, "")
    assert told()[-1] == "--command=uptime"


def on_a_machine(home: Path, venv: str) -> subprocess.CompletedProcess[str]:
    """Run the notebook's script where `python3 -m venv FOLDER` is these lines of shell."""
    tools = home / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "python3").write_text(f"#!/bin/sh\nfor folder; do :; done\n{venv}\n", encoding="utf-8")
    (tools / "python3").chmod(0o755)
    return subprocess.run(
        ["/bin/sh", "-c", machines._JUPYTER.format(port=9000)],
        env={"HOME": str(home), "PATH": f"{tools}{os.pathsep}{os.defpath}"},
        capture_output=True,
        text=True,
        check=False,
    )


INSTALLS = """\
mkdir -p "$folder/bin"
printf '#!/bin/sh\\necho "#!/bin/sh\\necho started \\\\$*" >%s/bin/jupyter-lab
chmod +x %s/bin/jupyter-lab' "$folder" "$folder" >"$folder/bin/pip"
chmod +x "$folder/bin/pip"
"""


def test_the_machine_installs_jupyter_once_and_starts_it_for_itself_alone(tmp_path: Path) -> None:
    first = on_a_machine(tmp_path, INSTALLS)
    assert (first.returncode, "installing JupyterLab" in first.stderr) == (0, True)
    started = "started -y --no-browser --ip=127.0.0.1 --port=9000 --port-retries=0\n"
    assert first.stdout == started
    second = on_a_machine(tmp_path, "exit 1")
    assert (second.stdout, second.stderr) == (started, "")


def test_a_machine_whose_python_has_no_venv_says_what_to_install(tmp_path: Path) -> None:
    failed = on_a_machine(tmp_path, "exit 1")
    assert failed.returncode == 1
    assert "sudo apt-get install python3-venv" in failed.stderr


TUNNEL = "python3 /sdk/gcloud.py compute start-iap-tunnel 'a-vm' '%p' --listen-on-stdin --project=p"
# What gcloud prints, by its source: only for a VM it quotes what has spaces.
PRINTED = {
    "a VM": f"/usr/bin/ssh -t -i /home/me/.ssh/google_compute_engine -o HostKeyAlias=compute.1 -o "
    f'"ProxyCommand {TUNNEL}" -o ProxyUseFdpass=no me_example_com@compute.1\n',
    "a TPU VM": "/usr/bin/ssh -t -i /home/me/.ssh/google_compute_engine -o HostKeyAlias=compute.1 "
    f"-o ProxyCommand {TUNNEL} -o ProxyUseFdpass=no me_example_com@compute.1\n",
}


@pytest.mark.parametrize("printed", PRINTED.values(), ids=PRINTED)
def test_the_settings_for_ssh_are_those_of_gcloud(printed: str) -> None:
    assert machines.ssh_settings("a-vm", printed).splitlines() == [
        "Host a-vm",
        "HostName compute.1",
        "User me_example_com",
        'IdentityFile "/home/me/.ssh/google_compute_engine"',
        "HostKeyAlias=compute.1",
        f"ProxyCommand {TUNNEL}",
        "ProxyUseFdpass=no",
    ]


@pytest.mark.parametrize("worker", [None, 0])
def test_gcloud_prints_its_ssh_command_for_each_kind_of_machine(worker: int | None) -> None:
    command = machines.Machine("a-vm", "p", "us-central1-a", worker).login()
    assert recorded()["gcloud"].refusal([*command[1:], "--dry-run"]) is None


def test_what_is_no_ssh_command_is_refused() -> None:
    with pytest.raises(TpustackError, match="a form that tpustack doesn't know: plink -t a-vm"):
        machines.ssh_settings("a-vm", "plink -t a-vm\n")


def test_vs_code_opens_the_machine_that_ssh_then_knows_by_name(
    run: Run,
    change: Change,
    told: Told,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    script = tmp_path / "bin" / "gcloud"
    printed = f"print({PRINTED['a VM']!r} if '--dry-run' in sys.argv else '')"
    script.write_text(f"#!{sys.executable}\nimport sys\n{printed}\n", encoding="utf-8")
    refused = run("code", "--stack", "dev")
    assert (refused.code, "no `code` on PATH" in refused.err) == (1, True)
    (tmp_path / "bin" / "code").write_text(GCLOUD, encoding="utf-8")
    (tmp_path / "bin" / "code").chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    kept, config = tmp_path / "dotfiles", tmp_path / ".ssh" / "config"
    kept.write_bytes(b"# caf\xe9\nHost mine\n")  # In an encoding of its own.
    kept.chmod(0o640)
    config.symlink_to(kept)
    before = os.umask(0o002)
    request.addfinalizer(lambda: os.umask(before))
    for _ in range(2):
        assert run("code", "--stack", "dev").code == 7
        assert told() == ["--remote", f"ssh-remote+{prefix()}-vm"]
    assert kept.read_bytes() == b"Include tpu-stack/*\n# caf\xe9\nHost mine\n"
    assert (config.is_symlink(), kept.stat().st_mode & 0o777) == (True, 0o640)
    entry = tmp_path / ".ssh" / "tpu-stack" / f"{prefix()}-vm"
    assert entry.read_text("utf-8").startswith(f"Host {prefix()}-vm\nHostName compute.1\n")
    # With any other mode ssh would refuse every connection, to other machines, too.
    assert entry.stat().st_mode & 0o777 == 0o600
