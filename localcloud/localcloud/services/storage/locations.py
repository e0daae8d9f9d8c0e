"""Where buckets can lie."""

from __future__ import annotations

from functools import lru_cache

from localcloud import data
from localcloud.core.call import Json
from localcloud.core.errors import invalid


def check(location: str, settings: Json) -> tuple[str, str]:
    """Return the location in Google's spelling and its type, such as `US-CENTRAL1` and `region`.

    Raises:
        ApiError: 400 when there is no such place.
    """
    place = location.upper()
    chosen = (settings.get("customPlacementConfig") or {}).get("dataLocations") or []
    if chosen:
        wrong = [region for region in chosen if region.upper() not in _regions()]
        if len(chosen) != 2 or wrong or place not in _others()["configurable"]:
            raise _unknown(f"{location} with {', '.join(chosen)}")
        return place, "dual-region"
    if place in _regions():
        return place, "region"
    for kind in ("multi-region", "dual-region"):
        if place in _others()[kind]:
            return place, kind
    raise _unknown(location)


@lru_cache(maxsize=1)
def _regions() -> frozenset[str]:
    return frozenset(region.upper() for region in data.load("compute-places"))


def _others() -> dict[str, list[str]]:
    locations: dict[str, list[str]] = data.load("storage-locations")
    return locations


def _unknown(location: str) -> Exception:
    return invalid(f"The specified location constraint is not valid: '{location}'.")
