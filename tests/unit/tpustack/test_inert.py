"""What others wrote is read in a terminal, and does nothing there."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st
from rich.console import Console

from tpu_agent.jobs.queue import Job, Spec
from tpu_training.goodput.account import STATES, Account
from tpustack import __main__, console
from tpustack.errors import TpustackError
from tpustack.jobs import command, job
from tpustack.logs import serial
from tpustack.logs.diagnosis import Log

CLIPBOARD = "\x1b\x1b[0m]52;c;aGFja2Vk\x07"
HOSTILE = [
    CLIPBOARD,
    "\x1bc reset",
    "\x9b31m C1",
    "\u202egnp.exe",
    "\x1b]8;;https://evil\x1b\\text\x1b]8;;\x1b\\",
    "a\rb\x08c\x7f",
    "[red]markup[/x]",
]
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@given(st.text())
def test_control_characters_are_removed(text: str) -> None:
    assert not _CONTROLS.search(console.plain(text))
    assert not _CONTROLS.search(console.line(text))


@pytest.mark.parametrize("text", HOSTILE)
def test_lines_of_a_log_are_inert(text: str) -> None:
    assert not any(_CONTROLS.search(line) for line in Log.of(text).lines)


def test_colours_go_without_a_trace_and_lines_stay() -> None:
    assert console.plain("\x1b[31mred\x1b[0m\r\n\tb\rc") == "red\n\tb\nc"


def test_a_line_stays_one_line_with_its_indentation() -> None:
    assert console.unbroken("  a\rb\r") == "  a b"
    assert Log.of("  a\r\nb\rc").lines == ("  a", "b c")


def hostile_job() -> Job:
    text = "".join(HOSTILE)
    spec = Spec(f"{text}\n  exit code 0", source=text, vertex={"tpu": text, "region": text})
    made = Job("one", "id", spec, 1.0, by=text, reason=text, custom_job=text)
    return made.started(text, text, text, 2.0)


def test_a_record_is_shown_inert_in_its_own_lines() -> None:
    lines = job.job_lines(hostile_job(), "b")
    assert not any(_CONTROLS.search(line) or "\n" in line for line in lines)
    assert not any(line.startswith("  exit code") for line in lines)


def test_tables_take_names_and_states_as_text() -> None:
    row = {"name": "[/x]", "place": None, "state": "[/x]", "submitted": 1.0, "command": "[/x]"}
    row |= {
        "started": None,
        "ended": None,
        "priority": 0,
        "tries": 1,
        "reason": "",
        "stop": False,
        "code": None,
    }
    assert "".join(job.jobs_table([{**row, "started": 2.0}], None)).count("[/x]") == 3
    hostile = job.jobs_table([{**row, "command": "".join(HOSTILE)}], None)
    assert len(hostile) == 2
    assert not _CONTROLS.search("".join(hostile))


def test_goodput_of_a_ledger_with_markup_and_escapes_is_shown() -> None:
    from tpustack.goodput import tables

    text = "".join(HOSTILE)
    total = Account(
        seconds=dict.fromkeys(dict(STATES), 0.0), causes={text: 1.0},
        tpus={text: {text: 1.0}}, machines={text: 1.0},
        starts=1, steps=1, lost_steps=0,
    )  # fmt: skip
    said = list(tables(total, None))
    assert len(said) == 3
    assert not any(_CONTROLS.search(one) for one in said)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_log_is_inert_on_a_terminal_and_as_it_is_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    pieces = [b"a\x1b", b"]52;c;x\x07\n", b"\xc3", b"\xa4\x9b\n"]
    said = b"".join(command._shown(pieces))
    assert (said == b"".join(pieces)) != is_terminal
    assert not (is_terminal and _CONTROLS.search(said.decode()))
    assert "ä" in said.decode(errors="replace")


def test_an_error_is_inert(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise TpustackError("said:\n" + "".join(HOSTILE))

    monkeypatch.setattr(__main__.cli, "main", fail)
    with pytest.raises(SystemExit):
        __main__.main()
    assert not _CONTROLS.search(capsys.readouterr().err)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_training_is_followed_past_markup_and_escapes(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    def lines(*_: object, **__: object) -> Iterator[str | None]:
        yield f"hello {CLIPBOARD}"
        yield "progress step=1/2 loss=[/x] figure=\x1bc"
        yield "training finished accuracy=[/x]\x1bc"

    monkeypatch.setattr(serial, "lines", lines)
    monkeypatch.setattr(serial, "Google", lambda: None)
    out = io.StringIO()
    console = Console(file=out, force_terminal=is_terminal, width=200)
    outputs = {"vm_name": "vm", "project": "p", "vm_zone": "z"}
    serial.follow(console, outputs, advice="none", verbose=True)
    assert "hello" in out.getvalue()
    assert "loss [/x]" in out.getvalue()
    assert ("\u2501" in out.getvalue()) is is_terminal
    assert "\x1bc" not in out.getvalue()
    assert "\x1b]52" not in out.getvalue()
