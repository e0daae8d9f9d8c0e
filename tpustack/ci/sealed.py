"""A plan as one job hands it to another: bound to a stack, a commit and a state.

It stays a plan of the engine, with a section of ours. Its secrets are encrypted, anew each time. So
two plans are compared by keyed hashes of what is encrypted, whose key lives as long as that takes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter

from infra.settings.parse import load_yaml
from tpustack.ci.plan import SECRET, Plan
from tpustack.errors import TpustackError

_SECTION = "tpu-stack"
# How the secrets are encrypted. Who decrypts is said by the checkout alone (`secretsprovider`).
_ENCRYPTION = ("encryptionsalt", "encryptedkey")
Decrypt = Callable[[Sequence[str], Mapping[str, str]], Sequence[str]]


@dataclass(frozen=True)
class Seal:
    """Where a plan is from.

    Attributes:
        stack: the stack that it is about.
        commit: the commit that it was made from; empty outside git.
        state: the digest of the state that it starts from.
        encryption: what the stack's key needs to decrypt the plan's secrets.
    """

    stack: str
    commit: str
    state: str
    encryption: Mapping[str, str]


@dataclass(frozen=True)
class Sealed:
    """A plan that was read: its steps by URN, where it is from, and the digest of all of it."""

    steps: Plan
    seal: Seal
    digest: str


class _Step(BaseModel):
    """What is compared of a resource."""

    steps: list[str] | None = None
    goal: dict[str, Any] | None = None


_SEAL, _STEPS = TypeAdapter(Seal), TypeAdapter(dict[str, _Step])


def encryption_of(stack_file: Path) -> dict[str, str]:
    """Return what a stack file says about its encryption; the engine has filled it in."""
    document = load_yaml(stack_file.read_text(encoding="utf-8"))
    return {name: document[name] for name in _ENCRYPTION if document.get(name)}


def seal(path: Path, made: Seal) -> None:
    """Write into the engine's plan where it is from."""
    document = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**document, _SECTION: asdict(made)}), encoding="utf-8")


def read(path: Path) -> Sealed:
    """Read a sealed plan. Raises TpustackError if the file is none."""
    try:
        content = path.read_bytes()
        document = json.loads(content)
        found = _STEPS.validate_python(document["resourcePlans"])
        steps = {urn: each.model_dump() for urn, each in found.items()}
        made = _SEAL.validate_python(document[_SECTION])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TpustackError(f"{path} is no plan of `tpustack ci preview`: {error!r}") from None
    return Sealed(steps, made, hashlib.sha256(content).hexdigest())


def comparable(fresh: Sealed, reviewed: Sealed, decrypt: Decrypt) -> tuple[Plan, Plan]:
    """Return the steps of both with keyed hashes in the place of secrets."""
    key = secrets.token_bytes(32)
    return _hashed(fresh, key, decrypt), _hashed(reviewed, key, decrypt)


def _hashed(plan: Sealed, key: bytes, decrypt: Decrypt) -> Plan:
    found = sorted(set(_ciphertexts(plan.steps)))
    if not found:
        return plan.steps
    texts = decrypt(found, plan.seal.encryption)
    hashes = {
        ciphertext: hmac.new(key, text.encode(), "sha256").hexdigest()
        for ciphertext, text in zip(found, texts, strict=True)
    }
    replaced: Plan = _replaced(plan.steps, hashes)
    return replaced


def _ciphertexts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if SECRET in value and isinstance(value.get("ciphertext"), str):
            yield value["ciphertext"]
        else:
            for each in value.values():
                yield from _ciphertexts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _ciphertexts(each)


def _replaced(value: Any, hashes: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        if value.get("ciphertext") in hashes and SECRET in value:
            return {SECRET: hashes[value["ciphertext"]]}
        return {name: _replaced(each, hashes) for name, each in value.items()}
    return [_replaced(each, hashes) for each in value] if isinstance(value, list) else value
