"""Why the engine failed, and what to do about it."""

from __future__ import annotations

import pytest
from pulumi import automation
from pulumi.automation.errors import CommandError

from tpustack.engine.stack import explained, reason
from tpustack.errors import TpustackError

STOCK_OUT = (
    "error: Error waiting to create Vm: Error waiting for Creating Vm: Error code 8, message: "
    'There is no more capacity in the zone "us-central1-b"; you can try in another zone'
)


def test_an_error_of_googles_comes_with_its_fix() -> None:
    said = f"Diagnostics:\n  gcp:tpu:V2Vm (tpu):\n    {STOCK_OUT}"
    result = automation.CommandResult(said, "", 255)
    with pytest.raises(TpustackError) as raised, explained("up", "dev"):
        raise CommandError(result)
    first, *_, last = str(raised.value).splitlines()
    assert first == "pulumi up of stack dev failed:"
    assert last.startswith("Fix: try again later, or choose another zone")


def test_a_fix_is_printed_once_and_an_unknown_error_has_none() -> None:
    assert reason("", [STOCK_OUT, STOCK_OUT.upper(), STOCK_OUT + "."]).count("Fix: ") == 1
    assert reason("", ["something strange"]) == "something strange"


def test_a_fix_is_in_the_persons_language_and_in_english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUSTACK_LANG", "zh")
    *_, chinese, english = reason("", [STOCK_OUT]).splitlines()
    assert chinese.startswith("\u89e3\u51b3\u65b9\u6cd5\uff1a")
    assert english.startswith("Fix: try again later")
