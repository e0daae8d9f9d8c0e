"""A group of commands that loads the module of a command only when that command is called."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """Commands of other modules beside those that are added.

    Args:
        later: where each is, such as "tpustack.jobs.command:command", by its name.
    """

    def __init__(self, *arguments: Any, later: Mapping[str, str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._later = later

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, sorted."""
        return sorted([*self._later, *self.commands])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command; None for an unknown name."""
        if cmd_name not in self._later:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._later[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command and its arguments; suggest the closest command for an unknown name."""
        names = self.list_commands(ctx)
        close = difflib.get_close_matches(args[0], names, n=1)
        if args[0] not in names and close and not ctx.resilient_parsing:
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{close[0]}'?")
        return super().resolve_command(ctx, args)
