"""All rules of the pack."""

from __future__ import annotations

from policy.access import FULL_SCOPE
from policy.buckets import NO_PUBLIC_BUCKETS
from policy.capacity import NO_SPOT_IN_PRODUCTION, SPOT_OUTSIDE_PRODUCTION
from policy.cost import COST_CEILING
from policy.labels import REQUIRED_LABELS
from policy.network import NO_PUBLIC_ADDRESSES
from policy.protection import PROTECT_IN_PRODUCTION
from policy.regions import REGIONS_AGREE
from policy.rule import Rule

RULES: tuple[Rule, ...] = (
    REGIONS_AGREE,
    NO_PUBLIC_BUCKETS,
    NO_PUBLIC_ADDRESSES,
    FULL_SCOPE,
    NO_SPOT_IN_PRODUCTION,
    SPOT_OUTSIDE_PRODUCTION,
    PROTECT_IN_PRODUCTION,
    COST_CEILING,
    REQUIRED_LABELS,
)
