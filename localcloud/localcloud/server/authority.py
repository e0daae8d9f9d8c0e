"""The local certificate authority, and the bundles of authorities that clients trust.

A company's proxy or package index may have an authority that only the user's own settings know. A
bundle without it would cut clients off from every host that is not Google's.
"""

import contextlib
import functools
import hashlib
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path

import certifi

HOSTS = ("googleapis.com", "*.googleapis.com", "*.storage.googleapis.com", "accounts.google.com")
# Apple's clients refuse server certificates that are valid for longer
# (support.apple.com/en-us/103769).
_LIFETIME = timedelta(days=825)
BUNDLE_VARIABLES = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "HTTPLIB2_CA_CERTS"),
    *("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "NODE_EXTRA_CA_CERTS"),
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
)
"""Each names a file of authorities to some client."""
OWN_BUNDLE = "LOCALCLOUD_CA_BUNDLE"
"""In a shell that `env` has set up: the bundle that it put into all of `BUNDLE_VARIABLES`."""
_USERS = "LOCALCLOUD_USERS_"
# Where systems keep theirs, if Python's OpenSSL was built to look elsewhere: Debian, Red Hat, SUSE
# and macOS (go.dev/src/crypto/x509/root_linux.go has the same list).
_SYSTEMS = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.S)


class Authority:
    """Keys and certificates in a folder, made at first use.

    The authority's own key is thrown away once the one certificate is signed, so that no
    other can be signed with it.
    """

    def __init__(self, folder: Path) -> None:
        self.certificate = folder / "ca.pem"
        self._chain = folder / "server.pem"
        if not all(path.exists() for path in (self.certificate, self._chain)):
            folder.mkdir(parents=True, exist_ok=True)
            self._make()
        self.bundle = write_bundle(folder, self.certificate.read_bytes(), os.environ)
        """The authority and the user's, for clients that also talk to other hosts."""

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


def users_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables as the user has set them, without what `env` has put in their place."""
    found = {}
    for name in BUNDLE_VARIABLES:
        value = environment.get(name, "")
        if value == environment.get(OWN_BUNDLE, ""):
            value = environment.get(_USERS + name, "")
        if value:
            found[name] = value
    return found


def kept_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables in which `env` keeps the user's own, so that `--unset` finds them."""
    return {_USERS + name: value for name, value in users_variables(environment).items()}


def write_bundle(folder: Path, own: bytes, environment: Mapping[str, str]) -> Path:
    """Write a bundle of `own` and the user's authorities; its name tells its content.

    So the shells of users with other settings don't take each other's authorities away.
    """
    certificates = dict.fromkeys(_CERTIFICATE.findall(own))
    for file in _files(environment):
        # What the user can't read, no client of the user's can.
        with contextlib.suppress(PermissionError):
            status = file.stat()
            certificates |= dict.fromkeys(_certificates(file, status.st_mtime_ns, status.st_size))
    content = b"\n".join(certificates) + b"\n"
    path = folder / f"ca-bundle-{hashlib.sha256(content).hexdigest()[:12]}.pem"
    if not path.exists():
        # Written at once: other clients may read it at any moment.
        part = path.with_suffix(".part")
        part.write_bytes(content)
        part.replace(path)
    return path


@functools.lru_cache(maxsize=1024)
def _certificates(file: Path, modified: int, size: int) -> list[bytes]:
    """Return those in a file, read again once it was modified: a system has hundreds of files."""
    return _CERTIFICATE.findall(file.read_bytes())


def _files(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files that are there: the user's, the system's, and Mozilla's list."""
    users = [
        *users_variables(environment).values(),
        *environment.get("SSL_CERT_DIR", "").split(":"),
    ]
    system = ssl.get_default_verify_paths().openssl_cafile
    for text in [*users, system, *_SYSTEMS, certifi.where()]:
        path = Path(text) if text else None
        if path and path.is_dir():
            with os.scandir(path) as entries:
                found = sorted(entry.path for entry in entries if entry.is_file())
            yield from map(Path, found)
        elif path and path.is_file():
            yield path
