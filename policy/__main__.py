"""Entry point: the engine starts this folder as a program and asks it over gRPC."""

import sys
from pathlib import Path

from pulumi_policy import PolicyPack

# Python puts the folder that it runs on the path; the imports start at the folder above it.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from tpu_policy.rules import RULES  # noqa: E402

PolicyPack("tpu-stack", [rule.as_policy() for rule in RULES])
