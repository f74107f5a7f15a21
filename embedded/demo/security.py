"""The secrets of a secured demo: a key file, an authority with certificates, users and passwords.

Everything is in files that only their owner can read, in the demo's temporary folder. No password
is on a command line.
"""

import base64
import ipaddress
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote_plus

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pymongo import AsyncMongoClient

ADMIN, ROUTER, SPARK = "admin", "router", "spark"
_ROLES: dict[str, list[object]] = {
    ADMIN: ["root"],
    ROUTER: ["readAnyDatabase"],
    SPARK: [{"role": "read", "db": "shop"}, "clusterMonitor"],
}
"""The users: of the load and the shell, of the router's lookups, and of the Spark job, whose
snapshot lists the shards."""

_VALID = timedelta(days=2)


class DemoSecurity:
    """The files and the users of one secured demo.

    Args:
        folder: where the files are created.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._passwords = {user: secrets.token_urlsafe(18) for user in _ROLES}
        self._authority = folder / "authority.pem"
        self._write("key", base64.b64encode(secrets.token_bytes(96)))
        self._write("password", self._passwords[ROUTER].encode())
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "the demo's authority")])
        authority = _builder(name, name, key, None).sign(key, hashes.SHA256())
        self._write(self._authority.name, authority.public_bytes(serialization.Encoding.PEM))
        for server in ("cluster", "router"):
            self._issue(server, key, name)

    @property
    def cluster_flags(self) -> list[str]:
        """The flags of ``mergerouter embedded``."""
        return ["--keyFile", str(self._folder / "key"), *self._tls_flags("cluster")]

    @property
    def router_flags(self) -> list[str]:
        """The flags of ``mergerouter serve``; its user is in the file that they name."""
        config = self._folder / "router.yaml"
        password = self._folder / "password"
        config.write_text(f"security:\n  user: {ROUTER}\n  passwordFile: {password}\n")
        return [
            "--config", str(config), "--keyFile", str(self._folder / "key"),
            *self._tls_flags("router"),
        ]  # fmt: skip

    def uri(self, address: str, user: str | None) -> str:
        """Return the connection string of a user, of nobody if ``user`` is None."""
        login = "" if user is None else f"{user}:{self._passwords[user]}@"
        options = f"tls=true&tlsCAFile={quote_plus(str(self._authority))}"
        return f"mongodb://{login}{address}/?{options}"

    def uri_file(self, address: str) -> Path:
        """Write the administrator's connection string to a file and return the file."""
        return self._write("uri", self.uri(address, ADMIN).encode())

    async def create_users(self, mongos: str) -> None:
        """Create the users: the first without a login, as servers allow it to local clients."""
        first: AsyncMongoClient[dict[str, object]]
        async with AsyncMongoClient(self.uri(mongos, None)) as first:
            await self._create(first, ADMIN)
        async with AsyncMongoClient(self.uri(mongos, ADMIN)) as first:
            for user in (ROUTER, SPARK):
                await self._create(first, user)

    async def _create(self, client: AsyncMongoClient[dict[str, object]], user: str) -> None:
        password, roles = self._passwords[user], _ROLES[user]
        await client.admin.command("createUser", user, pwd=password, roles=roles)

    def _tls_flags(self, server: str) -> list[str]:
        return [
            "--tlsMode", "requireTLS",
            "--tlsCertificateKeyFile", str(self._folder / f"{server}.pem"),
            "--tlsCAFile", str(self._authority), "--tlsAllowConnectionsWithoutCertificates",
        ]  # fmt: skip

    def _issue(self, server: str, authority: ec.EllipticCurvePrivateKey, issuer: x509.Name) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, server)])
        hosts = [
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            x509.DNSName("localhost"),
        ]
        signed = _builder(subject, issuer, key, hosts).sign(authority, hashes.SHA256())
        self._write(
            f"{server}.pem",
            signed.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )

    def _write(self, name: str, content: bytes) -> Path:
        path = self._folder / name
        path.touch(mode=0o600)
        path.write_bytes(content)
        return path


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[x509.GeneralName] | None,
) -> x509.CertificateBuilder:
    """Return an unsigned certificate; without ``hosts`` it is that of an authority."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=hosts is None, path_length=None), critical=True)
    )
    if hosts is None:
        return builder
    return builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
