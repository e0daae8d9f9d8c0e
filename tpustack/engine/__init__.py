"""The Pulumi engine: found or built, and driven by the Automation API."""

from tpustack import console
from tpustack.errors import UsageError


def named(stack: str | None) -> str:
    """Return the stack that `--stack` names, or without it the one that Pulumi selected.

    All commands about one stack ask this. Raises UsageError if there is none.
    """
    # Both take a while to load, the engine's library seconds.
    if stack is not None:
        from tpustack.stacks import require_file

        require_file(stack)
        return stack
    from tpustack.engine.backend import users_own

    if (selected := users_own().selected()) is None:
        raise UsageError("no stack is selected. Name one with --stack or `pulumi stack select`")
    console.say(f"Pulumi's selected stack: {selected}")
    return selected
