from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from localcloud.app import LocalCloud
from tests.patience import until
from tests.unit.localcloud.machines.conftest import Guest, spec

pytestmark = pytest.mark.server

# Three ways to outlive the script that starts them.
STRAYS = (
    "nohup sleep 1000 >/dev/null 2>&1 &\n"
    "setsid --fork sleep 1001 >/dev/null 2>&1\n"
    "(env -i setsid --fork sleep 1002 >/dev/null 2>&1 &)\n"
    "systemd-run --unit=stubborn bash -c 'trap \"\" TERM; while :; do sleep 0.1; done'\n"
    "echo strays are out\n"
)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie waits for its parent only; nothing of it runs.
    stat = Path(f"/proc/{pid}/stat")
    try:
        return not Path("/proc/self").exists() or ") Z " not in stat.read_text()
    except FileNotFoundError:
        return False


def test_a_script_has_its_own_home_host_name_and_identity(guest: Guest) -> None:
    text = guest.run(
        "echo home $HOME; pwd; hostname; env | grep -c ^GOOGLE_; which python3; "
        "python3 -c 'import sys; print(sys.executable)'; echo $TMPDIR"
    )
    home = str(guest.home / "machines")
    assert re.search(rf"startup-script: home {home}/m-\w+/root\n", text)
    assert "startup-script: m\n" in text
    assert "startup-script: 0\n" in text
    assert re.search(rf"startup-script: {home}/m-\w+/bin/python3\n", text)
    assert f"startup-script: {sys.executable}\n" in text


def test_useradd_and_chown_do_not_touch_the_host(
    guest: Guest,
) -> None:
    text = guest.run(
        "useradd --system tpu-job; chown tpu-job: $HOME; nft --file -; tune2fs -m 5 /dev/x\n"
        "setpriv --reuid=tpu-job --no-new-privs echo --runs as nobody-else"
    )
    assert "useradd: a local machine has one user" in text
    assert "chown: a local machine has one user" in text
    assert "nft: a local machine has no packet filter" in text
    assert "tune2fs: not part of a local machine" in text
    assert "startup-script: --runs as nobody-else\n" in text


def test_a_halt_ends_every_process_however_it_hides(guest: Guest) -> None:
    key = guest.boot(spec(STRAYS))
    guest.sees(key, "strays are out")
    pids = guest.machines.processes()
    assert len(pids) >= 5
    guest.machines.halt(key, grace=0.3)
    assert not [pid for pid in pids if alive(pid)]
    assert guest.machines.processes() == []
    assert not guest.machines.running(key)


def test_no_process_survives_an_emulator_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\n"
        "from localcloud.app import LocalCloud\n"
        "from tests.patience import until\n"
        "from tests.unit.localcloud.machines.conftest import spec\n"
        "cloud = LocalCloud(Path(sys.argv[1]))\ncloud.start()\n"
        "machines = cloud.cloud.machines\n"
        "for name in ('a', 'b'):\n"
        "    machine = spec(sys.argv[2], name, daemons={'worker': ['sleep', '1003']})\n"
        "    machines.boot(machine)\n"
        "    until(lambda: 'strays are out' in machines.serial(machine.key)[0])\n"
        "print(*machines.processes(), flush=True)\ntime.sleep(1000)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "home"), STRAYS]
    emulator = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_root())
    assert emulator.stdout is not None
    pids = [int(word) for word in emulator.stdout.readline().split()]
    assert len(pids) >= 12
    emulator.send_signal(signal.SIGKILL)
    emulator.wait()
    emulator.stdout.close()
    until(lambda: not [pid for pid in pids if alive(pid)])


def test_machines_that_ran_run_again_after_a_restart_at_the_same_port(tmp_path: Path) -> None:
    first = LocalCloud(tmp_path / "home")
    first.start()
    machine = spec("echo boot; sleep 1000")
    off = spec(name="off")
    first.cloud.machines.boot(machine)
    first.cloud.machines.boot(off)
    first.cloud.machines.halt(off.key)
    port = first.cloud.machines.port(machine.key)
    until(lambda: "startup-script: boot" in first.cloud.machines.serial(machine.key)[0])
    first.stop()
    assert first.cloud.machines.processes() == []
    second = LocalCloud(tmp_path / "home")
    second.start()
    try:
        machines = second.cloud.machines
        assert machines.running(machine.key)
        assert not machines.running(off.key)
        assert machines.port(machine.key) == port
        until(lambda: machines.serial(machine.key)[0].count("startup-script: boot") == 2)
    finally:
        second.stop()


def test_a_daemon_of_the_image_is_started_again_when_it_ends(guest: Guest) -> None:
    daemons = {"worker": ["sh", "-c", "echo serving $PORT; sleep 0.1"]}
    key = guest.boot(spec(daemons=daemons, environment={"PORT": "8470"}))
    until(lambda: guest.machines.serial(key)[0].count("]: serving 8470") >= 2)


def test_a_reboot_keeps_the_files_and_runs_the_script_again(guest: Guest) -> None:
    key = guest.boot(
        spec('test -e "$HOME/seen" && { echo again; exit; }; touch "$HOME/seen"; reboot')
    )
    guest.sees(key, "startup-script: again")
    assert guest.machines.running(key)


def test_a_removed_machine_leaves_no_folder(guest: Guest) -> None:
    key = guest.boot(spec("echo up"))
    guest.sees(key, "startup-script: up")
    guest.machines.remove(key)
    assert list((guest.home / "machines").iterdir()) == []
    assert guest.machines.serial(key) == ("", 0)


def test_a_machine_whose_first_process_dies_is_off(guest: Guest) -> None:
    key = guest.boot(spec(STRAYS))
    guest.sees(key, "strays are out")
    pids = guest.machines.processes()
    os.kill(min(pids), signal.SIGKILL)
    until(lambda: not guest.machines.running(key))
    until(lambda: not [pid for pid in pids if alive(pid) and not _bare(pid)])
    for pid in filter(alive, pids):
        os.kill(pid, signal.SIGKILL)


def test_a_shutdown_script_runs_before_the_machine_is_off(guest: Guest) -> None:
    attributes = {"shutdown-script": "echo saving; sleep 0.2; echo saved"}
    key = guest.boot(spec(attributes=attributes))
    guest.sees(key, "No startup scripts to run.")
    guest.machines.halt(key, grace=10)
    assert "shutdown-script: saved\n" in guest.machines.serial(key)[0]


def _bare(pid: int) -> bool:
    """A process without environment, which nothing ties to a machine whose first one is gone."""
    return (Path("/proc") / str(pid) / "environ").read_bytes() == b""


def _root() -> Path:
    return Path(__file__).parents[4]
