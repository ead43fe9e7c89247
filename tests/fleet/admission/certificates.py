"""A certificate authority for loopback, and files that serve with it."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = timedelta(days=1)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


@dataclass
class Ca:
    """An authority and the pair of files it renews, as cert-manager does."""

    directory: Path
    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )

    def __post_init__(self) -> None:
        self.root = self._signed(_name("ca"), self.key.public_key(), ca=True)
        self.renew()

    @property
    def certificate(self) -> Path:
        """The server's certificate."""
        return self.directory / "tls.crt"

    @property
    def private(self) -> Path:
        """The server's key."""
        return self.directory / "tls.key"

    @property
    def bundle(self) -> bytes:
        """caBundle, PEM."""
        return self.root.public_bytes(serialization.Encoding.PEM)

    def trust(self) -> ssl.SSLContext:
        """A client that trusts this authority alone."""
        return ssl.create_default_context(cadata=self.bundle.decode())

    def renew(self) -> int:
        """Write a new key and certificate for 127.0.0.1; its serial number."""
        key = ec.generate_private_key(ec.SECP256R1())
        found = self._signed(_name("webhook"), key.public_key(), ca=False)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        for path, content in (
            (self.private, pem),
            (self.certificate, found.public_bytes(serialization.Encoding.PEM)),
        ):
            fresh = path.with_suffix(".new")
            fresh.write_bytes(content)
            fresh.replace(path)
        return found.serial_number

    @property
    def authority(self) -> Path:
        """The authority's own certificate, as a file."""
        path = self.directory / "ca.crt"
        path.write_bytes(self.bundle)
        return path

    def trust_as(self, name: str, signer: Ca | None = None) -> ssl.SSLContext:
        """A client that trusts this authority, with a certificate for this name by `signer`."""
        key = ec.generate_private_key(ec.SECP256R1())
        found = (signer or self)._signed(_name(name), key.public_key(), ca=False)
        path = self.directory / f"{name}.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + found.public_bytes(serialization.Encoding.PEM)
        )
        made = self.trust()
        made.load_cert_chain(path)
        return made

    def _signed(
        self, name: x509.Name, key: ec.EllipticCurvePublicKey, *, ca: bool
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=ca,
            crl_sign=ca,
            encipher_only=False,
            decipher_only=False,
        )
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(_name("ca"))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )
