"""The local certificate authority, whose certificates the proxy shows for Google's hosts."""

from __future__ import annotations

import os
import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path

from localcloud.server import trust

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
        self._chain = folder / "server.pem"
        if not all(path.exists() for path in (self.certificate, self._chain)):
            folder.mkdir(parents=True, exist_ok=True)
            self._make()
        self.bundle = trust.write(folder, self.certificate.read_bytes(), os.environ)
        """The authority beside the user's, for clients that also talk to other hosts."""

    def context(self) -> ssl.SSLContext:
        """Return the server side's TLS settings."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._chain)
        # The first that the client offers too: clients of gRPC alone offer nothing but h2.
        context.set_alpn_protocols(["http/1.1", "h2"])
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
