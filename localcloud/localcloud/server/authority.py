"""The local certificate authority, whose certificates the proxy shows for Google's hosts."""

from __future__ import annotations

import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path

import certifi
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HOSTS = ("googleapis.com", "*.googleapis.com", "*.storage.googleapis.com", "accounts.google.com")
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
        now = datetime.now(timezone.utc)
        authority_key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "local Google Cloud")])
        authority = (
            _builder(name, name, authority_key.public_key(), now)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(sign=True), critical=True)
            .sign(authority_key, hashes.SHA256())
        )
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOSTS[0])])
        alternatives = x509.SubjectAlternativeName([x509.DNSName(host) for host in HOSTS])
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
        server = (
            _builder(subject, name, key.public_key(), now)
            .add_extension(alternatives, critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(sign=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(issuer_key, critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        private = key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self._chain.touch(mode=0o600)
        self._chain.write_bytes(private + server.public_bytes(pem))
        self.certificate.write_bytes(authority.public_bytes(pem))
        public = Path(certifi.where()).read_bytes()
        self.bundle.write_bytes(public + b"\n" + authority.public_bytes(pem))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign,
        key_cert_sign=sign,
        crl_sign=sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
