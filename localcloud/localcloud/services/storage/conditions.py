"""Preconditions: what must hold of an object or bucket for a call to be carried out."""

from __future__ import annotations

from dataclasses import dataclass

from localcloud.core.call import Call
from localcloud.core.errors import ApiError
from localcloud.services.storage.records import Bucket, Version

Subject = Version | Bucket | None


@dataclass(frozen=True)
class Conditions:
    """The `if…Match` parameters of a call; a generation of 0 means that nothing is there."""

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None

    @classmethod
    def of(cls, call: Call, prefix: str = "if") -> Conditions:
        """Return the conditions in a call's query; `prefix` is `ifSource` for a copy's source."""
        return cls(
            call.number(f"{prefix}GenerationMatch"),
            call.number(f"{prefix}GenerationNotMatch"),
            call.number(f"{prefix}MetagenerationMatch"),
            call.number(f"{prefix}MetagenerationNotMatch"),
        )

    def check(self, subject: Subject) -> None:
        """Refuse a call whose conditions don't hold.

        Raises:
            ApiError: 412.
        """
        if not self._matches(subject) or self.unchanged(subject):
            raise failed()

    def check_read(self, subject: Subject) -> bool:
        """Like `check`, but a `NotMatch` that fails makes the answer True: 304, not modified."""
        if not self._matches(subject):
            raise failed()
        return self.unchanged(subject)

    def unchanged(self, subject: Subject) -> bool:
        """Return whether a `NotMatch` condition fails."""
        generation, metageneration = _numbers(subject)
        return generation == self.generation_not_match or (
            metageneration is not None and metageneration == self.metageneration_not_match
        )

    def _matches(self, subject: Subject) -> bool:
        generation, metageneration = _numbers(subject)
        return self.generation_match in (None, generation) and self.metageneration_match in (
            None,
            metageneration,
        )


def failed() -> ApiError:
    """Return a 412 in Google's words."""
    return ApiError(412, "At least one of the pre-conditions you specified did not hold.")


def _numbers(subject: Subject) -> tuple[int, int | None]:
    return (0, None) if subject is None else (subject.generation, subject.metageneration)
