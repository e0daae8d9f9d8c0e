"""What the VM's start-up script asks of apt for the Ops Agent."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tpu_agent.bundle import startup_script

KEY = "usr/share/keyrings/cloud.google.gpg"
SUITE = "https://packages.cloud.google.com/apt google-cloud-ops-agent-bookworm-all main"
WAITS = "--quiet --option DPkg::Lock::Timeout=60"
STUBS = """
log() { echo "log: $*"; }
attribute() { [[ "$1" == ops-agent ]] && echo true; }
systemctl() { return 3; }
systemd-run() { while [[ "$1" == --* ]]; do shift; done; "$@"; }
apt-get() { echo "apt-get $*"; [[ -z "$FAILS" || "$*" != *" $FAILS"* ]]; }
sleep() { SECONDS=$((SECONDS + 601)); }
export -f apt-get sleep
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The folders of a Debian 12 that the script looks into."""
    (tmp_path / KEY).parent.mkdir(parents=True)
    (tmp_path / "etc/apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "etc/os-release").write_text("ID=debian\nVERSION_CODENAME=bookworm\n")
    return tmp_path


def install(image: Path, fails: str = "") -> list[str]:
    """The script's words and calls, with the image's folder as its root."""
    functions = re.findall(
        r"^(?:apt_get|install_ops_agent)\(\) {.*?^}", startup_script("vm.sh"), re.M | re.S
    )
    here = re.sub(r"/(etc|usr)/", rf"{image}/\1/", "\n".join(functions))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{STUBS}\n{here}\ninstall_ops_agent"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "FAILS": fails},
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if "--version" not in line]


def lists(image: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in image.glob("etc/apt/sources.list.d/*")}


def test_the_agent_comes_from_googles_repository_signed_with_the_images_own_key(
    image: Path,
) -> None:
    (image / KEY).touch()
    assert install(image) == [
        "log: installing the Ops Agent",
        f"apt-get {WAITS} update",
        f"apt-get {WAITS} install --yes google-cloud-ops-agent",
    ]
    found = lists(image)["google-cloud-ops-agent.list"]
    assert found == f"deb [signed-by={image / KEY}] {SUITE}\n"


def test_without_that_key_apt_decides_by_those_that_it_trusts(image: Path) -> None:
    install(image)
    assert lists(image) == {"google-cloud-ops-agent.list": f"deb {SUITE}\n"}


@pytest.mark.parametrize("fails", ["update", "install"])
def test_a_repository_that_apt_refuses_is_dropped_and_training_continues(
    image: Path, fails: str
) -> None:
    assert install(image, fails)[-1] == "log: the Ops Agent could not be installed"
    assert lists(image) == {}


def test_nothing_that_is_fetched_is_run_by_a_shell() -> None:
    for script in ("vm.sh", "tpu_vm.sh"):
        assert not re.findall(r"curl[^\n]*\|\s*(?:ba)?sh|dl\.google\.com", startup_script(script))
