"""TLS: contexts for both directions from PEM files, which can be read again while in use.

Source: MongoDB's ``net.tls`` options, of which each field of ``TlsFiles`` is one.
"""

import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Self

from cryptography import x509
from cryptography.x509.oid import NameOID

_VERSIONS = {"TLS1_2": ssl.TLSVersion.TLSv1_2, "TLS1_3": ssl.TLSVersion.TLSv1_3}
PROTOCOLS = ("TLS1_0", "TLS1_1", *_VERSIONS)
"""The names of protocol versions in ``disabledProtocols``; the first two are never used."""

_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20:DHE+AESGCM:DHE+CHACHA20"
"""The ciphers that clients of TLS 1.2 may choose (RFC 9325, section 4.2); those of TLS 1.3 are all
of this kind. Python's own defaults depend on its build: Debian's allows CBC with SHA-1."""

_NAMES = {NameOID.EMAIL_ADDRESS: "emailAddress"}
"""Short names of attributes that RFC 4514 does not define and MongoDB's servers show."""

_MEMBER_ATTRIBUTES = frozenset(
    {NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.DOMAIN_COMPONENT}
)


class Certificate(NamedTuple):
    """A certificate's owner and its last second of validity.

    ``subject`` is the distinguished name as MongoDB's servers show it (RFC 4514). ``membership``
    are its organisations, units and domain components, by which servers recognise the members of
    their cluster.
    """

    subject: str
    expires: datetime
    membership: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, certificate: x509.Certificate) -> Self:
        """Return the fields of a parsed certificate."""
        return cls(
            certificate.subject.rfc4514_string(_NAMES),
            certificate.not_valid_after_utc,
            frozenset(
                (part.oid.dotted_string, str(part.value))
                for part in certificate.subject
                if part.oid in _MEMBER_ATTRIBUTES
            ),
        )

    @classmethod
    def of_peer(cls, der: bytes) -> Self:
        """Return a peer's certificate from its DER; raises ValueError."""
        return cls.of(x509.load_der_x509_certificate(der))

    @classmethod
    def read(cls, file: Path) -> Self:
        """Return the first certificate of a PEM file; raises ValueError, OSError."""
        try:
            return cls.of(x509.load_pem_x509_certificates(file.read_bytes())[0])
        except ValueError:
            raise ValueError(f"{file} holds no certificate in PEM form") from None


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files and the strictness of TLS.

    ``certificate`` holds the server's certificate and key, ``cluster_certificate`` those that it
    presents to other servers, by default the same. Certificates of servers are checked with the
    authorities in ``ca``, those of clients with ``cluster_ca``, by default also ``ca``. Without
    ``ca``, servers are checked with the system's authorities, and clients are not asked for a
    certificate. ``disabled`` are names of PROTOCOLS. Passwords do not appear in the object's
    representation.
    """

    certificate: Path
    password: str | None = field(default=None, repr=False)
    cluster_certificate: Path | None = None
    cluster_password: str | None = field(default=None, repr=False)
    ca: Path | None = None
    cluster_ca: Path | None = None
    crl: Path | None = None
    connections_without_certificates: bool = False
    invalid_certificates: bool = False
    invalid_hostnames: bool = False
    disabled: frozenset[str] = frozenset()

    @property
    def own_certificate(self) -> Path:
        """The file with the certificate that is presented to other servers."""
        return self.cluster_certificate or self.certificate

    @property
    def own_password(self) -> str | None:
        """The password of the key in ``own_certificate``."""
        return self.password if self.cluster_certificate is None else self.cluster_password


class TlsContexts:
    """The contexts for new connections; ``reload`` replaces them.

    Args:
        files: the files, which are read now.

    Raises:
        ValueError: a file's content is unusable, a certificate has expired; the message names the
            file.
        OSError: a file cannot be read.
    """

    files: TlsFiles
    """The files as they were read last."""
    incoming: ssl.SSLContext
    """The context for clients that connect."""
    unasked: ssl.SSLContext
    """The context for clients that are not asked for a certificate, such as HTTP clients."""
    outgoing: ssl.SSLContext
    """The context for connections to other servers."""
    certificate: Certificate
    """The certificate that clients see."""
    own: Certificate
    """The certificate that other servers see."""

    def __init__(self, files: TlsFiles) -> None:
        self.reload(files)

    def reload(self, files: TlsFiles) -> None:
        """Read files, the same or others; new connections use the result.

        Raises:
            ValueError: as for the constructor; the former contexts stay in use.
            OSError: likewise.
        """
        incoming, unasked = _server_context(files), _server_context(files)
        clients_ca = files.cluster_ca or files.ca
        if clients_ca is not None and not files.invalid_certificates:
            _trust(incoming, clients_ca, files.crl)
            optional = files.connections_without_certificates
            incoming.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
        outgoing = _context(ssl.PROTOCOL_TLS_CLIENT, files)
        _present(outgoing, files.own_certificate, files.own_password)
        if files.invalid_certificates:
            outgoing.check_hostname = False
            outgoing.verify_mode = ssl.CERT_NONE
        else:
            outgoing.check_hostname = not files.invalid_hostnames
            if files.ca is None:
                outgoing.load_default_certs()
            else:
                _trust(outgoing, files.ca, files.crl)
        certificate, own = _valid_now(files.certificate), _valid_now(files.own_certificate)
        self.files, self.certificate, self.own = files, certificate, own
        self.incoming, self.unasked, self.outgoing = incoming, unasked, outgoing


def _server_context(files: TlsFiles) -> ssl.SSLContext:
    context = _context(ssl.PROTOCOL_TLS_SERVER, files)
    context.set_ciphers(_CIPHERS)
    _present(context, files.certificate, files.password)
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def _context(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    allowed = [version for name, version in _VERSIONS.items() if name not in files.disabled]
    if not allowed:
        raise ValueError("disabledProtocols leaves no protocol: TLS 1.2 and 1.3 are the only ones")
    context.minimum_version, context.maximum_version = min(allowed), max(allowed)
    return context


def _present(context: ssl.SSLContext, file: Path, password: str | None) -> None:
    asked = False

    def given() -> str:
        nonlocal asked
        asked = True
        if password is None:
            raise ValueError(
                f"the key in {file} is encrypted: set its password, in a file or the environment"
            )
        return password

    try:
        context.load_cert_chain(file, password=given)
    except ssl.SSLError as error:
        reason = error.reason or ""
        if reason == "KEY_VALUES_MISMATCH":
            raise ValueError(f"the key in {file} does not belong to its certificate") from None
        if asked:
            raise ValueError(f"the password does not open the key in {file}") from None
        raise ValueError(
            f"{file} must hold a certificate and its private key in PEM form ({error})"
        ) from None
    except OSError as error:
        raise _unreadable(file, error) from error


def _trust(context: ssl.SSLContext, ca: Path, crl: Path | None) -> None:
    for file in (ca, crl):
        if file is None:
            continue
        try:
            context.load_verify_locations(file)
        except ssl.SSLError as error:
            raise ValueError(f"{file} must hold certificates in PEM form ({error})") from None
        except OSError as error:
            raise _unreadable(file, error) from error
    if crl is not None:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _unreadable(file: Path, error: OSError) -> OSError:
    return OSError(f"cannot read {file}: {error.strerror}")


def _valid_now(file: Path) -> Certificate:
    certificate = Certificate.read(file)
    if certificate.expires <= datetime.now(UTC):
        raise ValueError(f"the certificate in {file} expired on {certificate.expires:%Y-%m-%d}")
    return certificate
