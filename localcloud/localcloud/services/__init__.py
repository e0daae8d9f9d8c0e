"""The emulated APIs, one package each; a module registers its handlers when it is imported."""

import pkgutil
from functools import cache
from importlib import import_module

from localcloud.core import registry


@cache
def all_apis() -> tuple[registry.Api, ...]:
    """Import every module below this folder and return the APIs that they serve."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        import_module(module.name)
    return registry.apis()
