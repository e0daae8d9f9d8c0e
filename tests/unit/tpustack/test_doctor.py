"""`tpustack doctor`: errors are found whatever is around them, and only where there are any."""

from __future__ import annotations

import io
import json
import locale
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.examples import examples
from tpu_training.errors import KnownError, known_errors
from tpustack import console
from tpustack.cloud.google import NotFound
from tpustack.logs import serial as stack_logs
from tpustack.logs.diagnosis import diagnose

from .conftest import REPOSITORY, Run

each_error = pytest.mark.parametrize("known", known_errors(), ids=lambda known: known.id)
PREFIXES = (
    "Nov 21 10:00:00 tpu-stack-dev-vm training[123]: ",
    "Nov 21 10:00:00 tpu-stack-dev-vm bash[1]: E1121 10:00:00.123456    1234 rpc_client.cc:12] ",
    "2019-01-13 03:15:46.904944: W tensorflow/core/distributed_runtime/rpc/grpc_session.cc:349] ",
    "[   10.208574] google_metadata_script_runner[10]: startup-script: ",
    "[worker 3] ",
    "ERROR:tensorflow:",
    "trainer-1  | ",
)
SGR = "\x1b[1;31m{}\x1b[0m"


def at_columns(text: str) -> str:
    """As a terminal of 80 columns breaks it: anywhere."""
    return "\n".join(text[start : start + 80] for start in range(0, len(text), 80))


def at_words(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 80, break_on_hyphens=False))


def coloured(text: str) -> str:
    return "\r\n".join(SGR.format(line) for line in at_columns(text).split("\n"))


def ids(text: str) -> list[str]:
    return [found.known.id for found in diagnose("log", text).findings]


def assert_only(text: str, known: KnownError, line: int = 2) -> None:
    diagnosis = diagnose("log", f"all is well\n{text}\nall is well\n")
    assert [found.known.id for found in diagnosis.findings] == [known.id]
    assert diagnosis.findings[0].lines[0] >= line
    assert diagnosis.unknown == ()


@each_error
def test_each_error_is_found_in_its_plain_form(known: KnownError) -> None:
    assert_only(known.example, known)


@each_error
@pytest.mark.parametrize("prefix", PREFIXES)
def test_each_error_is_found_behind_a_prefix(prefix: str, known: KnownError) -> None:
    assert_only(prefix + known.example, known)


@each_error
@pytest.mark.parametrize("wrap", [at_columns, at_words, coloured])
@pytest.mark.parametrize("prefix", ["", *PREFIXES])
def test_each_error_is_found_in_broken_lines(
    prefix: str, wrap: Callable[[str], str], known: KnownError
) -> None:
    assert_only(wrap(prefix + known.example), known)


@each_error
def test_each_error_is_found_by_a_part_of_its_text(known: KnownError) -> None:
    assert len(known.partial) < len(known.example)
    assert_only(f"…{known.partial}", known)


def test_a_whole_good_training_has_no_errors() -> None:
    log = (Path(__file__).parent / "logs" / "good_training.log").read_text(encoding="utf-8")
    assert "training finished" in log
    diagnosis = diagnose("log", log)
    assert (diagnosis.findings, diagnosis.unknown) == ((), ())


def test_the_logs_of_2019_are_recognised_word_for_word() -> None:
    """Lines that a user of TPUs published, with everything that his terminal showed."""
    log = (Path(__file__).parent / "logs" / "from_2019.log").read_text(encoding="utf-8")
    diagnosis = diagnose("log", log)
    assert [found.known.id for found in diagnosis.findings] == [
        "host-memory",
        "bucket-timeout",
        "tpu-failed",
        "worker-lost",
        "master-not-ready",
        "device-memory",
    ]
    assert diagnosis.unknown == ()


def test_repeated_errors_are_one_finding_with_all_lines() -> None:
    (found,) = diagnose("log", "Socket closed\nretrying\nSocket closed\n").findings
    assert found.lines == (1, 3)


def test_different_errors_are_found_in_the_order_of_their_lines() -> None:
    text = "Socket closed\nstd::bad_alloc\nNo space left on device\n"
    assert ids(text) == ["worker-lost", "host-memory", "disk-full"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("all well\nValueError: strange", 2),
        ("x\nTraceback (most recent call last):\n  File 'a'\n    b()\nmy.Oddity: strange\n", 5),
        ("x\nTraceback (most recent call last):\n  File 'a'", 2),
        ('Traceback (most recent call last):\nFile "a.py", line 1\nb()\nKeyError: 1', 4),
        ("E1121 10:00:00.123456 12 rpc.cc:1] something new", 1),
        ("training failed: ValueError: strange (not a known error; --debug shows where)", 1),
        ("startup-script exit status 1", 1),
        ('Script "startup-script" failed with error: exit status 1', 1),
    ],
)
def test_an_unknown_error_is_reported_as_unknown(text: str, line: int) -> None:
    diagnosis = diagnose("log", text)
    assert diagnosis.findings == ()
    assert [strange.lines for strange in diagnosis.unknown] == [(line,)]


def test_a_crash_is_not_reported_twice_if_its_reason_is_known() -> None:
    diagnosis = diagnose("log", "std::bad_alloc\nAborted (core dumped)\n")
    assert diagnosis.unknown == ()


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.one_of(
            st.text(),
            st.sampled_from([known.example for known in known_errors()] + list(PREFIXES)),
            st.sampled_from(["\n", "\r\n", "\x1b[", "Traceback (most recent call last):\n", "\0"]),
        )
    ).map("".join)
)
def test_any_text_can_be_diagnosed(text: str) -> None:
    diagnosis = diagnose("log", text)
    count = text.count("\n") + 1
    lines = [line for found in diagnosis.findings for line in found.lines]
    lines += [line for strange in diagnosis.unknown for line in strange.lines]
    assert all(1 <= line <= count for line in lines)


def test_a_file_gives_lines_causes_fixes_and_links(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("fine\nSocket closed\nOddError: x\n", encoding="utf-8")
    done = run("doctor", str(log))
    assert done.code == 1
    assert done.out.splitlines() == [
        f"{log}:2: worker-lost: Socket closed",
        "  cause: the connection to the TPU's worker was lost: a preemption, maintenance, or a "
        "crash",
        "  fix:   check the TPU's state and start the job again. It continues from its last "
        "checkpoint",
        "  see:   https://github.com/tensorflow/tensorflow/issues/38190",
        f"{log}:3: unknown error: OddError: x",
    ]


@pytest.mark.parametrize("content", [b"", b"fine\n", b"\xff\xfe\x00 fine"])
def test_a_file_without_errors_is_exit_code_0(content: bytes, run: Run, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(content)
    done = run("doctor", str(log))
    assert (done.code, done.out) == (0, "Nothing found.\n")


def test_json_has_the_findings_and_the_unknown_errors(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("Socket closed\nOddError: x\n", encoding="utf-8")
    done = run("doctor", str(log), "--json")
    document = json.loads(done.out)
    assert done.code == 1
    assert set(document) == {"findings", "unknown", "fits"}
    (found,) = document["findings"]
    assert set(found) == {"source", "id", "lines", "text", "cause", "fix", "link", "translation"}
    assert found["translation"] is None
    assert (found["id"], found["lines"], found["source"]) == ("worker-lost", [1], str(log))
    assert document["unknown"] == [{"source": str(log), "lines": [2], "text": "OddError: x"}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/no/such.log"], "No such file or directory"),
        (["."], "Is a directory"),
        (["-", "--stack", "dev"], "--stack and FILE exclude each other"),
        (["--stack", "no/stack"], "is no name of a stack"),
        (["--stack", "nosuch"], "has no file Pulumi.nosuch.yaml"),
        (["--markdown", "--json"], "--markdown stands alone"),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_2(
    arguments: Sequence[str], message: str, run: Run
) -> None:
    done = run("doctor", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_a_log_is_read_without_tensorflow_and_pulumi() -> None:
    code = (
        "import sys; from tpustack.__main__ import cli\n"
        "cli.main(['doctor', '-'], standalone_mode=False)\n"
        "heavy = {'tensorflow', 'pulumi', 'google.auth', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input="fine", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "Nothing found.\n"), done.stderr


def test_the_page_is_the_catalogue(run: Run) -> None:
    page = (REPOSITORY / "docs" / "errors.md").read_text(encoding="utf-8")
    assert page == run("doctor", "--markdown").out, "run `make docs`"


def test_the_example_on_the_page_prints_what_it_says() -> None:
    page = (REPOSITORY / "docs" / "errors.md").read_text(encoding="utf-8")
    example = re.search(r'```console\n\$ echo "(.*)" \| tpustack doctor -\n((?:.*\n)*?)```', page)
    assert example
    assert max(map(len, example[2].splitlines())) <= 80
    command = [sys.executable, "-m", "tpustack", "doctor", "-"]
    done = subprocess.run(command, input=example[1], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, example[2])


def test_every_heading_on_the_page_is_found_by_its_words_and_by_its_id() -> None:
    page = (REPOSITORY / "docs" / "errors.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## `(.+)` \{#(\S+)\}$", page, re.M)
    assert headings == [(known.symptom, known.id) for known in known_errors()]
    assert len({symptom for symptom, _ in headings}) == len(headings)


@each_error
def test_each_symptom_is_what_people_see(known: KnownError) -> None:
    words = [part.strip() for part in known.symptom.split("…")]
    assert re.search(".+".join(map(re.escape, words)), known.example, re.S)
    assert known.symptom != known.id


def names_in(text: str) -> set[str]:
    """Commands, flags, settings, roles, addresses and packages, which no language changes."""
    found = re.findall(
        r"`[^`]+`|--\w[\w-]*|\b[A-Z_]{6,}\b|\b\w+(?:\.\w+)+\b|/[\w./]+|'tpu\S+'", text
    )
    return {name.strip(".") for name in found}


@each_error
def test_each_error_has_the_same_commands_and_settings_in_chinese(known: KnownError) -> None:
    for english, chinese in zip((known.cause, known.fix), known.chinese, strict=True):
        assert re.search("[\u4e00-\u9fff]", chinese)
        assert names_in(chinese) == names_in(english)
        assert not re.search("[\u4e00-\u9fff][,;:?!]|\u3002$", chinese)


LANGUAGES = [
    ({"TPUSTACK_LANG": "zh"}, True),
    ({"TPUSTACK_LANG": "zh_CN.UTF-8"}, True),
    ({"TPUSTACK_LANG": "ZH-Hans"}, True),
    ({"TPUSTACK_LANG": "en", "LC_ALL": "zh_CN.UTF-8"}, False),
    ({"TPUSTACK_LANG": "xx"}, False),
    ({"TPUSTACK_LANG": ""}, False),
    ({"LC_ALL": "C.UTF-8"}, False),
    ({"LC_ALL": "no_SUCH.UTF-8"}, False),
    ({"LC_ALL": "zh_NOSUCH.UTF-8"}, False),
    # A terminal without Chinese characters.
    ({"TPUSTACK_LANG": "zh", "PYTHONIOENCODING": "ascii"}, False),
]


@pytest.mark.parametrize(("variables", "chinese"), LANGUAGES)
def test_the_language_is_that_of_the_variable_or_the_locale(
    variables: dict[str, str], chinese: bool
) -> None:
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))
    }
    done = subprocess.run(
        [sys.executable, "-m", "tpustack", "doctor", "-"],
        input=b"Socket closed\n",
        capture_output=True,
        check=False,
        env={**own, **variables},
    )
    lost = next(known for known in known_errors() if known.id == "worker-lost")
    lines = done.stdout.decode().splitlines()
    assert (done.returncode, done.stderr) == (1, b"")
    assert lines[-3:-1] == [f"  cause: {lost.cause}", f"  fix:   {lost.fix}"]
    cause, fix = lost.chinese
    assert lines[1:-3] == (
        [f"  \u539f\u56e0\uff1a{cause}", f"  \u89e3\u51b3\u65b9\u6cd5\uff1a{fix}"]
        if chinese
        else []
    )


def test_an_installed_locale_is_asked_for_its_language(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may have no Chinese locale, so this stands in for the C library."""
    asked: list[str | None] = []

    def installed(category: int, name: str | None = None) -> str:
        asked.append(name)
        return "zh_CN.UTF-8" if name == "" else "C"

    monkeypatch.delenv("TPUSTACK_LANG", raising=False)
    monkeypatch.setattr(locale, "setlocale", installed)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    assert console.in_chinese()
    assert asked == [None, "", "C"]


def test_json_has_the_fix_in_chinese_too(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "train.log"
    log.write_text("Socket closed\n", encoding="utf-8")
    monkeypatch.setenv("TPUSTACK_LANG", "zh")
    (found,) = json.loads(run("doctor", str(log), "--json").out)["findings"]
    lost = next(known for known in known_errors() if known.id == "worker-lost")
    assert found["fix"] == lost.fix
    assert found["translation"] == {"cause": lost.chinese[0], "fix": lost.chinese[1]}


class FakeGoogle:
    """Answers by the end of the address; an error where it knows none."""

    def __init__(self, answers: dict[str, dict[str, Any]]) -> None:
        self.answers = answers

    def get(self, url: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        for end, answer in self.answers.items():
            if url.endswith(end):
                return {} if (parameters or {}).get("start") else answer
        raise NotFound(f"{url} answers 404: not found")


OUTPUTS = {
    "project": "p",
    "vm_zone": "us-central1-b",
    "vm_name": "vm",
    "tpu_zone": "us-central1-b",
    "tpu_name": "tpu",
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"nodes/tpu": {"state": "PREEMPTED"}}, ["preempted"]),
        ({"nodes/tpu": {"state": "FAILED"}}, ["tpu-not-ready"]),
        ({"nodes/tpu": {"state": "READY", "health": "UNHEALTHY_TENSORFLOW"}}, ["tpu-not-ready"]),
        ({"instances/vm": {"status": "TERMINATED"}}, ["vm-not-running"]),
        ({"serialPort": {"contents": "Socket closed\n", "next": "14"}}, ["worker-lost"]),
    ],
)
def test_doctor_reads_a_stacks_states_and_logs(
    change: dict[str, dict[str, Any]], expected: list[str]
) -> None:
    healthy: dict[str, dict[str, Any]] = {
        "nodes/tpu": {"state": "READY", "health": "HEALTHY"},
        "instances/vm": {"status": "RUNNING"},
        "serialPort": {"contents": "training finished\n", "next": "18"},
    }
    texts = stack_logs.stack_texts(FakeGoogle(healthy | change), OUTPUTS)  # type: ignore[arg-type]
    diagnoses = [diagnose(source, text) for source, text in texts]
    assert [found.known.id for one in diagnoses for found in one.findings] == expected
    assert not any(one.unknown for one in diagnoses)


BOOT = "[    0.0] Linux version 6.1\n"
GRANTS = (
    "startup-script: tpu-stack: waiting for the grants of the machine's account: 403 "
    "vm@p.iam.gserviceaccount.com does not have storage.objects.get access\n"
)
BEGINS = "startup-script: tpu-stack: starting the job train\n"


@pytest.mark.parametrize(
    ("serial", "expected"),
    [
        (BOOT + GRANTS, ["bucket-permission"]),
        (BOOT + GRANTS + BEGINS + "Socket closed\n", ["worker-lost"]),
        (BOOT + BEGINS + "Socket closed\n" + BOOT + GRANTS + BEGINS, []),
    ],
)
def test_errors_before_the_last_start_are_not_reported(serial: str, expected: list[str]) -> None:
    google = FakeGoogle({"serialPort": {"contents": serial, "next": str(len(serial))}})
    *_, (_, text) = stack_logs.stack_texts(google, OUTPUTS)  # type: ignore[arg-type]
    assert ids(text) == expected


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("the disk of the moon is full", "unknown error"),
        ("--model=net.py: there is no such file", "missing-model-file"),
    ],
)
def test_the_trainers_last_word_comes_first(said: str, what: str, tmp_path: Path, run: Run) -> None:
    log = tmp_path / "log"
    log.write_text(f"Socket closed\ntraining failed: {said}\n", "utf-8")
    first = run("doctor", str(log)).out.splitlines()[0]
    assert first.endswith(f": {what}: training failed: {said}")


def test_a_tpu_is_looked_up_in_all_zones_in_which_it_may_be() -> None:
    google = FakeGoogle({"us-central1-f/nodes/tpu": {"state": "READY"}})
    zones = {"tpu_zones": ["us-central1-b", "us-central1-c", "us-central1-f"]}
    (_, text), *_ = stack_logs.stack_texts(google, OUTPUTS | zones)  # type: ignore[arg-type]
    assert text == "the TPU tpu in us-central1-f is READY"
    (_, text), *_ = stack_logs.stack_texts(FakeGoogle({}), OUTPUTS | zones)  # type: ignore[arg-type]
    assert ids(text) == ["tpu-missing"]


def test_what_google_refuses_is_a_finding_too() -> None:
    texts = list(stack_logs.stack_texts(FakeGoogle({}), OUTPUTS))  # type: ignore[arg-type]
    assert ids(texts[0][1]) == ["tpu-missing"]
    assert diagnose("vm", texts[1][1]).unknown
