"""Hooks: functions that one module calls without knowing which others have registered them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from localcloud.core.cloud import Cloud

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Hook(Generic[Arguments, Result]):
    """The functions to call at some event, in the order in which they were registered."""

    def __init__(self) -> None:
        self._functions: list[Callable[Arguments, Result]] = []

    def __call__(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Register a function, as its decorator."""
        self._functions.append(function)
        return function

    def run(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> list[Result]:
        """Call every function and return their results."""
        return [function(*args, **kwargs) for function in self._functions]


cloud_started: Hook[[Cloud], None] = Hook()
"""Runs when the emulator starts, before its first request."""
service_enabled: defaultdict[str, Hook[[Cloud, str], None]] = defaultdict(Hook)
"""By API: runs when a project, given by its id, has enabled it."""
machine_powered_off: Hook[[Cloud, str], None] = Hook()
"""Runs when a machine, given by its key, has gone off by itself."""
