"""Gets the outputs of a stack that is up, for commands that look at its resources."""

from __future__ import annotations

from typing import Any

from tpustack.engine.backend import users_own
from tpustack.errors import UsageError
from tpustack.stacks.files import path_of, shown


def outputs_of(stack: str | None) -> dict[str, Any]:
    """Return the outputs of `stack`, or of the one that Pulumi selected; create none.

    Raises:
        UsageError: when there is no such stack, or nothing of it is deployed.
    """
    if stack is not None and not (path := path_of(stack)).exists():
        raise UsageError(f"--stack: there is no stack {stack}: {shown(path)} does not exist")
    backend = users_own()
    name = stack or backend.selected()
    if name is None:
        raise UsageError("no stack is selected: name one with --stack")
    outputs = backend.select(name, create=False).outputs()
    if "vm_name" not in outputs:
        raise UsageError(f"the stack {name} has nothing up to look into; `pulumi up` makes it")
    return outputs
