"""The start-up scripts use the names of the contract, and no others."""

from __future__ import annotations

import re

from tests.unit.structure.modules import ROOT
from tpu_core import contract
from tpu_core.contract import Environment, Metadata, Unit

SCRIPTS = {
    path.name: path.read_text("utf-8")
    for path in sorted(ROOT.rglob("*.sh"))
    if (path.name in ("common.sh", "vm.sh", "tpu_vm.sh") and ".venv" not in path.parts)
}
ALL = "\n".join(SCRIPTS.values())
# What the agent alone reads, or Google's own agents do.
NOT_IN_SCRIPTS = {
    Metadata.STARTUP_SCRIPT,
    Metadata.MESSAGES,
    Metadata.TPU_ZONES,
    Metadata.COST_NOTE,
}


def values(names: type) -> set[str]:
    return {value for name, value in vars(names).items() if name.isupper()}


def test_there_are_three_scripts() -> None:
    assert SCRIPTS.keys() == {"common.sh", "vm.sh", "tpu_vm.sh"}


def test_scripts_read_the_metadata_keys_of_the_contract() -> None:
    read = set(re.findall(r"\battribute ([a-z][a-z0-9-]+)", ALL))
    assert read == values(Metadata) - NOT_IN_SCRIPTS


def test_scripts_start_the_units_of_the_contract() -> None:
    assert set(re.findall(r"--unit=(\S+)", ALL)) == values(Unit)


def test_scripts_set_the_environment_variables_of_the_contract() -> None:
    used = set(re.findall(r"\bTPU_(?:STACK|TRAINING)_[A-Z_]+", ALL))
    of_the_agent = {Environment.OUTCOME, Environment.PULSE, Environment.COST_NOTE}
    assert used == values(Environment) - of_the_agent


def test_scripts_use_the_special_values_of_the_contract() -> None:
    assert f"!= {contract.AS_ROOT} ]]" in ALL
    assert f"== {contract.NO_LOCK} ]]" in ALL
