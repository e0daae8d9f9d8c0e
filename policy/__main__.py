"""Entry point: the engine starts this folder as a program and asks it over gRPC."""

import sys
from pathlib import Path

from pulumi_policy import PolicyPack

# The rules' own revision of what they import, also where another one is installed.
_HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(_HERE), str(_HERE.with_name("infra"))]

from tpu_policy.rules import RULES  # noqa: E402

PolicyPack("tpu-stack", [rule.as_policy() for rule in RULES])
