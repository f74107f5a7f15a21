"""The router's certificates: their warnings at start, and their exchange while it runs."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import structlog

from router.config.tls import Tls
from shard_client.wire.tls import TlsContexts

log = structlog.get_logger(component="NETWORK")

_SOON = timedelta(days=30)
"""How long before a certificate expires it is reported, as by mongos."""


class Certificates:
    """The certificates of a router with TLS; ``contexts`` are those of new connections.

    Raises ValueError: a file's content is unusable, or a certificate has expired; OSError: a file
    cannot be read.
    """

    def __init__(self, settings: Tls) -> None:
        self._settings = settings
        self.rotated: Callable[[], None] = lambda: None
        """Called after each exchange."""
        self.contexts = TlsContexts(settings.files())
        for warning in settings.warnings():
            log.warning(warning)
        self._log_expiry()

    @property
    def towards_cluster(self) -> TlsContexts | None:
        """The contexts for connections to the cluster; None if those do not use TLS."""
        return self.contexts if self._settings.towards_cluster else None

    def rotate(self) -> str | None:
        """Read all files again; new connections use them, existing ones stay open.

        If a file is unusable, the former certificates stay in use: this is logged, and the reason
        returned.
        """
        try:
            self.contexts.reload(self._settings.files())
        except (ValueError, OSError) as error:
            log.error(
                "Cannot exchange the certificates; the former ones stay in use", error=str(error)
            )
            return str(error)
        log.info("Successfully rotated X.509 certificates", id=4913400, **self.describe())
        self._log_expiry()
        self.rotated()
        return None

    def describe(self) -> dict[str, object]:
        """Return the fields of serverStatus's section ``security``, named as in mongos."""
        certificate = self.contexts.certificate
        return {
            "SSLServerSubjectName": certificate.subject,
            "SSLServerHasCertificateAuthority": self._settings.ca_file is not None,
            "SSLServerCertificateExpirationDate": certificate.expires,
        }

    def _log_expiry(self) -> None:
        for certificate in {self.contexts.certificate, self.contexts.own}:
            remaining = certificate.expires - datetime.now(UTC)
            if remaining < _SOON:
                log.warning(
                    "Server certificate expiration information",
                    subject=certificate.subject,
                    daysLeft=remaining.days,
                )
