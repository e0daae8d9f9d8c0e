"""Seeds that have nothing to do with each other, from the one seed of a job."""

import hashlib


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A seed of 31 bits for `purpose`, such as ("weights",).

    Mixed, as seed + 1 for one thing would be the same numbers as the next job's seed for another.
    """
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
