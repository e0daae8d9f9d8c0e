"""The local certificate authority, whose certificates the proxy shows for Google's hosts."""

from __future__ import annotations

import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path

import certifi

HOSTS = ("googleapis.com", "*.googleapis.com", "*.storage.googleapis.com", "accounts.google.com")
# Apple's clients refuse server certificates that are valid for longer
# (support.apple.com/en-us/103769).
_LIFETIME = timedelta(days=825)


class Authority:
    """Keys and certificates in a folder, made at first use.

    The authority's own key is thrown away once the one certificate is signed, so that nobody can
    sign another with it.
    """

    def __init__(self, folder: Path) -> None:
        self.certificate = folder / "ca.pem"
        self.bundle = folder / "ca-bundle.pem"
        """The authority beside the public ones, for clients that also talk to other hosts."""
        self._chain = folder / "server.pem"
        if not all(path.exists() for path in (self.certificate, self.bundle, self._chain)):
            folder.mkdir(parents=True, exist_ok=True)
            self._make()

    def context(self) -> ssl.SSLContext:
        """Return the server side's TLS settings."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._chain)
        context.set_alpn_protocols(["http/1.1"])
        return context

    def _make(self) -> None:
        # Imported late: only the first start on a home folder makes certificates.
        import trustme

        authority = trustme.CA(path_length=0, organization_name="local Google Cloud")
        begin = datetime.now(timezone.utc) - timedelta(days=1)
        server = authority.issue_cert(*HOSTS, not_before=begin, not_after=begin + _LIFETIME)
        self._chain.touch(mode=0o600)
        server.private_key_and_cert_chain_pem.write_to_path(self._chain)
        authority.cert_pem.write_to_path(self.certificate)
        public = Path(certifi.where()).read_bytes()
        self.bundle.write_bytes(public + b"\n" + authority.cert_pem.bytes())
