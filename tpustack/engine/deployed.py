"""Gets the outputs of a stack that is up, for commands that look at its resources."""

from __future__ import annotations

from typing import Any

from tpustack.engine.backend import users_own
from tpustack.errors import UsageError
from tpustack.stacks.files import require_file


def outputs_of(stack: str | None) -> dict[str, Any]:
    """Return the outputs of `stack`, or of the one that Pulumi selected; create none.

    Raises:
        UsageError: when there is no such stack, or nothing of it is deployed.
    """
    name = name_of(stack)
    outputs = users_own().select(name, create=False).outputs()
    if "vm_name" not in outputs:
        raise UsageError(
            f"the stack {name} has nothing up to look into; `pulumi up --stack {name}` makes it"
        )
    return outputs


def name_of(stack: str | None) -> str:
    """Return `stack`, or the one that Pulumi selected. Raises UsageError if there is none."""
    if stack is not None:
        require_file(stack)
    name = stack or users_own().selected()
    if name is None:
        raise UsageError("no stack is selected: name one with --stack")
    return name
