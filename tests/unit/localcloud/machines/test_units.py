from __future__ import annotations

import re
import socket

import pytest

from tests.patience import until
from tests.unit.localcloud.machines.conftest import Guest, spec

pytestmark = pytest.mark.server

CONSOLE = "-p StandardOutput=journal+console"


def test_a_unit_runs_in_the_background_with_its_output_on_the_serial_port(guest: Guest) -> None:
    key = guest.boot(spec(f"systemd-run --unit=job {CONSOLE} echo hello"))
    guest.sees(key, "Running as unit: job.service")
    until(lambda: re.search(r"\] echo\[\d+\]: hello\n", guest.machines.serial(key)[0]) is not None)


def test_a_unit_without_console_leaves_the_serial_port_alone(guest: Guest) -> None:
    text = guest.run("systemd-run --unit=quiet --wait echo sec-ret")
    assert "sec-ret\n" not in text


def test_a_failing_unit_is_started_again_until_it_succeeds(guest: Guest) -> None:
    text = guest.run(
        "systemd-run --unit=job --wait -p Restart=on-failure -p RestartSec=0.05 "
        f"{CONSOLE} bash -c 'echo x >>tries; echo try; test $(wc -l <tries) -ge 3'"
    )
    assert len(re.findall(r"bash\[\d+\]: try", text)) == 3
    assert "job.service: Scheduled restart job, restart counter is at 2." in text


def test_an_option_may_stand_between_the_verb_and_the_units(guest: Guest) -> None:
    text = guest.run(
        "systemd-run --unit=job sleep 100; systemctl is-active --quiet job; echo code $?"
    )
    assert "startup-script: code 0\n" in text
    assert "startup-script: active\n" not in text


def test_too_many_starts_in_a_row_fail_the_unit(guest: Guest) -> None:
    text = guest.run(
        "systemd-run --unit=job --wait -p Restart=always -p RestartSec=0 false; echo ended"
    )
    assert text.count("Scheduled restart job") == 5
    assert "Start request repeated too quickly." in text
    assert "start-limit-hit" in text


def test_background_processes_of_a_unit_end_with_it(guest: Guest) -> None:
    text = guest.run(
        "systemd-run --unit=job --wait bash -c 'setsid sleep 1000 >/dev/null 2>&1 & exit 0'; "
        "pgrep -f 'sleep 1000' -u $(id -u) | xargs -r -I% grep -zl $LOCALCLOUD_MACHINE "
        "/proc/%/environ; echo looked"
    )
    assert "environ" not in text
    assert "startup-script: looked" in text


def test_the_name_of_a_loaded_unit_is_taken(guest: Guest) -> None:
    text = guest.run(
        "systemd-run --unit=job sleep 100; systemd-run --unit=job sleep 100; echo code $?"
    )
    assert "job.service was already loaded" in text
    assert "startup-script: code 1\n" in text


@pytest.mark.parametrize(("option", "code"), [("", "1"), ("--collect", "0")])
def test_a_failed_unit_keeps_its_name_unless_it_is_collected(
    guest: Guest, option: str, code: str
) -> None:
    text = guest.run(
        f"systemd-run --unit=job {option} --wait false; systemctl is-active job\n"
        "systemd-run --unit=job --wait true; echo code $?\n"
    )
    assert "startup-script: failed\n" in text
    assert re.findall(r"startup-script: code (\d+)", text) == [code]


def test_unsupported_systemd_options_fail_by_name(guest: Guest) -> None:
    text = guest.run(
        "systemd-run --on-calendar=daily true; echo code $?\n"
        "systemd-run -p DynamicUser=yes true; echo code $?\n"
        "systemd-run -p Restart=sometimes true; echo code $?\n"
        "systemctl list-timers; echo code $?\n"
        "shutdown +10; echo code $?\n"
        "apt-get install vim; echo code $?\n"
    )
    assert re.findall(r"startup-script: code (\d+)", text) == ["1", "1", "1", "1", "1", "127"]
    for named in ("--on-calendar", "DynamicUser", "sometimes", "list-timers", "+10", "apt-get"):
        assert named in text


def test_an_option_of_the_command_itself_is_not_taken_for_one_of_systemd_run(guest: Guest) -> None:
    text = guest.run(
        f"""systemd-run --wait {CONSOLE} echo --unit=x -p "it's  \\"so\\"" '$HOME' ';'"""
    )
    assert re.search(r"""echo\[\d+\]: --unit=x -p it's  "so" \$HOME ;\n""", text)


def test_a_socket_unit_starts_its_service_at_the_first_connection(guest: Guest) -> None:
    serve = (
        "import os, socket; assert os.environ['LISTEN_PID'] == str(os.getpid());"
        "taken, _ = socket.socket(fileno=3).accept(); taken.sendall(b'hello'); taken.close()"
    )
    run = f'systemd-run --unit=web --socket-property=ListenStream=80 python3 -c "{serve}"'
    # So many that the descriptor of the last one has two digits.
    more = (
        "for n in 1 2 3 4 5 6 7 8; do systemd-run --socket-property=ListenStream=900$n true; done"
    )
    text = guest.run(f"{more}; {run}; systemctl is-active web.service; {run}")
    assert "Running socket as unit: web.socket" in text
    assert "startup-script: inactive" in text
    assert "Unit web.service was already loaded" in text
    key = spec().key
    for _ in range(2):
        address = guest.machines.address(key, 80)
        assert address is not None
        with socket.create_connection(address, timeout=10) as connection:
            assert connection.recv(9) == b"hello"
    assert guest.machines.address(key, 81) is None
    guest.machines.halt(key)
    assert guest.machines.address(key, 80) is None
