"""Derive independent seeds from the one seed of a job."""

import hashlib


def derive_seed(seed: int, *purpose: str | int) -> int:
    """Return a 31-bit seed for `purpose`, such as ("weights",).

    It is a hash: with seed + 1, one purpose would share its numbers with another one of the job
    that has the next seed.
    """
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
