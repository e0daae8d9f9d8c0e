"""Finds what must not leave the person's machine: keys, tokens, passwords."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

_NAMES = (
    *(".env", ".env.*", ".netrc", "_netrc", ".pgpass", ".pypirc", ".npmrc", ".git-credentials"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks"),
    *("*.keystore", "*.kdbx", "*.ppk", "gha-creds-*.json", "application_default_credentials.json"),
    *("client_secret*.json", "kubeconfig", "credentials.tfrc.json"),
)
_EXAMPLES = (".env.example", ".env.sample", ".env.template")
# The forms that the givers of tokens document, or that gitleaks knows.
_PATTERNS: Mapping[str, re.Pattern[bytes]] = {
    "a private key": re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "a key of a Google service account": re.compile(rb'"private_key_id"\s*:\s*"[0-9a-f]{40}"'),
    "a Google API key": re.compile(rb"\bAIza[0-9A-Za-z_-]{35}\b"),
    "a Google OAuth token": re.compile(rb"\b(?:ya29\.[0-9A-Za-z_-]{30,}|1//[0-9A-Za-z_-]{40,})"),
    "an AWS access key": re.compile(rb"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a GitHub token": re.compile(rb"\b(?:gh[pousr]_[0-9A-Za-z]{36}|github_pat_\w{60,})"),
    "a GitLab token": re.compile(rb"\bglpat-[0-9A-Za-z_-]{20,}"),
    "a Hugging Face token": re.compile(rb"\bhf_[0-9A-Za-z]{34}\b"),
    "a Slack token": re.compile(rb"\bxox[abposr]-[0-9A-Za-z-]{10,}"),
    "a Weights & Biases or PyPI token": re.compile(rb"\b(?:pypi-AgEI|wandb_v1_)[0-9A-Za-z_-]{20,}"),
}
_LONGEST = 1 << 20


def why_secret(path: Path) -> str | None:
    """Return why a file must not be uploaded; None if it may be."""
    name = path.name.lower()
    if name not in _EXAMPLES and any(fnmatchcase(name, pattern) for pattern in _NAMES):
        return "its name is that of a file with keys"
    try:
        with path.open("rb") as file:
            return in_text(file.read(_LONGEST))
    except OSError as error:
        return f"it can't be read ({error.strerror})"


def in_text(text: bytes) -> str | None:
    """Return what secret a text holds; None if none is known."""
    for what, pattern in _PATTERNS.items():
        if pattern.search(text):
            return f"it holds {what}"
    return None
