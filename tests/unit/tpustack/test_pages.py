"""The examples in the pages are what the commands print."""

from __future__ import annotations

import re
import shlex
from datetime import datetime, timezone, tzinfo
from pathlib import Path

import pytest

from .conftest import REPOSITORY, Run

PAGES = [REPOSITORY / "docs" / f"{name}.md" for name in ("tpu-types", "sizing", "team", "settings")]
EXAMPLE = re.compile(r"```console\n\$ tpustack ((?:.*\\\n)*.*)\n((?:.*\n)*?)```")


class WhenWritten(datetime):
    """The clock when the pages were written: a forecast names the day on which a training ends."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> WhenWritten:
        return cls(2026, 11, 27, tzinfo=timezone.utc)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.usefixtures("pulumi")
def test_the_examples_on_a_page_print_what_it_says(
    page: Path, project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpustack.commands.forecast.datetime", WhenWritten)
    examples = EXAMPLE.findall(page.read_text(encoding="utf-8"))
    assert examples
    for command, output in examples:
        done = run(*shlex.split(command.replace("\\\n", "")))
        assert done.code == 0, done.err
        shown, cut, _ = output.partition("...\n")
        assert done.out.startswith(shown) if cut else done.out == shown, command
