"""What the servers of one embedded cluster share about access."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from embedded.access.signatures import TimeKeys
from shard_client.wire.authentication import read_key_file
from shard_client.wire.tls import TlsContexts


@dataclass(frozen=True, slots=True)
class Security:
    """How a cluster is secured; the default is a cluster that is open to all.

    Attributes:
        authorization: whether clients have to log in.
        key: the password of ``__system``, as which servers log in to each other; None without a
            key file.
        by_certificate: whether the certificate of a member is a login as ``__system``, too.
        tls: the contexts of TLS, which all connections then use.
        keys: the keys with which cluster times are signed; None without authorization.
    """

    authorization: bool = False
    key: str | None = None
    by_certificate: bool = False
    tls: TlsContexts | None = None
    keys: TimeKeys | None = None

    @classmethod
    def of(
        cls,
        now: float,
        *,
        authorization: bool = False,
        key_file: Path | None = None,
        by_certificate: bool = False,
        tls: TlsContexts | None = None,
    ) -> Self:
        """Return the security of a new cluster; a key file and certificates imply authorization.

        Of several keys in the file, servers accept the first.

        Args:
            now: the wall clock, in seconds since 1970.
            authorization: whether clients have to log in in any case.
            key_file: the file with the members' password.
            by_certificate: whether members log in with their certificates.
            tls: the contexts of TLS.

        Raises:
            ValueError: the file is not a key file that only its owner can read.
            OSError: the file cannot be read.
        """
        key = None if key_file is None else read_key_file(key_file).password
        authorization = authorization or key is not None or by_certificate
        return cls(
            authorization, key, by_certificate, tls, TimeKeys(now) if authorization else None
        )


OPEN = Security()
"""A cluster without authorization and TLS."""
