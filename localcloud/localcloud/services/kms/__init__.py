"""The Cloud KMS API: key rings, symmetric keys, their versions and who may use them."""

from __future__ import annotations

from localcloud.services.kms import crypto, keys, policy, rings, versions
from localcloud.services.kms.api import API

__all__ = ["API", "crypto", "keys", "policy", "rings", "versions"]
