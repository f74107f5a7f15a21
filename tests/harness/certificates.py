"""Certificates for tests: an authority that issues, revokes and lets expire."""

import ipaddress
import os
import ssl
import stat
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HERE = ("127.0.0.1", "localhost")
"""The names of this machine, which test servers have in their certificates."""

_OIDS = {
    "CN": NameOID.COMMON_NAME,
    "O": NameOID.ORGANIZATION_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "DC": NameOID.DOMAIN_COMPONENT,
    "emailAddress": NameOID.EMAIL_ADDRESS,
}
_DAY = timedelta(days=1)


class Authority:
    """A certificate authority; its files are in ``folder``.

    Args:
        folder: an existing folder.
        name: the authority's name, also in the names of its files.
    """

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        certificate = (
            x509.CertificateBuilder()
            .subject_name(self._subject)
            .issuer_name(self._subject)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 10 * _DAY)
            .not_valid_after(now + 365 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(self._key_id(), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / f"{name}.pem"
        """The authority's certificate."""
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        *,
        hosts: Sequence[str] = HERE,
        subject: Sequence[tuple[str, str]] = (("O", "tests"), ("OU", "servers")),
        days: float = 60,
        password: str | None = None,
        file: Path | None = None,
    ) -> Path:
        """Return a new file with a certificate and its key, readable for the owner alone.

        Args:
            name: the common name, and the file's name.
            hosts: host names and addresses.
            subject: further parts of the subject, outermost first, by short name.
            days: days until it expires; negative if it has expired.
            password: encrypts the key.
            file: the file to replace, instead of a new one.
        """
        now = datetime.now(UTC)
        key = ec.generate_private_key(ec.SECP256R1())
        parts = [x509.NameAttribute(_OIDS[short], value) for short, value in subject]
        alternatives = [_general_name(host) for host in hosts]
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 9 * _DAY)
            .not_valid_after(now + days * _DAY)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if alternatives:
            builder = builder.add_extension(
                x509.SubjectAlternativeName(alternatives), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        path = file or self._folder / f"{name}.pem"
        draft = path.with_suffix(".new")
        draft.touch(mode=stat.S_IRUSR | stat.S_IWUSR)
        draft.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
            )
        )
        os.replace(draft, path)
        return path

    def revoke(self, *certificates: Path) -> Path:
        """Return a new list of revoked certificates, which has these."""
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._subject)
            .last_update(now - _DAY)
            .next_update(now + 30 * _DAY)
        )
        for path in certificates:
            revoked = x509.load_pem_x509_certificate(path.read_bytes())
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(revoked.serial_number)
                .revocation_date(now - _DAY)
                .build()
            )
        path = self._folder / f"{self._name}.crl"
        signed = builder.sign(self._key, hashes.SHA256())
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return path

    def router_flags(self, certificate: Path) -> dict[str, object]:
        """Return the flags of a router that has this certificate and takes TLS connections only."""
        return {
            "tlsMode": "requireTLS",
            "tlsCertificateKeyFile": certificate,
            "tlsCAFile": self.file,
        }

    def _key_id(self) -> x509.SubjectKeyIdentifier:
        return x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def only_tls_1_1(context: ssl.SSLContext) -> None:
    """Limit a context to protocols that are too old for the router."""
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
