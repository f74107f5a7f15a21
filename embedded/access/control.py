"""Whether a client may run a command, and the cluster times that clients are shown."""

import hmac
import secrets

import structlog
from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from embedded.access.roles import WITHOUT_LOGIN, may_run
from embedded.access.users import SERVERS, Account, Users
from embedded.client import Client
from embedded.errors import CommandError, ErrorCode
from embedded.logical_clock import as_ordinal
from embedded.storage.bson_values import Document
from embedded.storage.shell_text import bson_text
from shard_client.wire.tls import TlsContexts

log = structlog.get_logger()

_RANGE = 0xFFFF
"""All times that differ in these bits have one signature."""

_NEVER = Timestamp(0xFFFFFFFF, 0)
_UNSIGNED = {"hash": b"\x00" * 20, "keyId": 0}


class AccessControl:
    """The access to the servers of one cluster; by default it is open to all.

    Args:
        key: the password of the servers themselves, the content of a key file. With one, clients
            have to log in.
        tls: the contexts of TLS, which all connections then use.
    """

    def __init__(self, key: str | None = None, tls: TlsContexts | None = None) -> None:
        self.users = Users(key)
        self.enforced = key is not None
        self.tls = tls
        self._secret = secrets.token_bytes(20)
        self._key_id = secrets.randbits(62) | 1

    def account(self, client: Client) -> Account | None:
        """Return the account of the user that is logged in; None if none is, or it was dropped."""
        account: Account | None = client.account
        return account if account and self.users.get(account.name) is account else None

    def check(self, name: str, database: str, command: Document, client: Client) -> None:
        """Check that a client may run a command. The first user may be created by anybody.

        Raises:
            CommandError: 13 Unauthorized.
        """
        if not self.enforced or client.in_process or name in WITHOUT_LOGIN:
            return
        account = self.account(client)
        if account is None:
            if name == "createUser" and not self.users.exist:
                return
            raise CommandError(ErrorCode.Unauthorized, f"command {name} requires authentication")
        if not may_run(account.grants, name, database):
            text = bson_text({**command, "$db": database})
            log.info("Checking authorization failed", user=str(account.name), command=name)
            raise CommandError(
                ErrorCode.Unauthorized, f"not authorized on {database} to execute command {text}"
            )

    # Cluster times (docs/protocol.md#authentication)

    def keys(self) -> list[Document]:
        """Return the documents of admin.system.keys: one key, with which all times are signed."""
        key = {"purpose": "HMAC", "key": Binary(self._secret), "expiresAt": _NEVER}
        return [{"_id": Int64(self._key_id), **key}]

    def shown(self, time: Timestamp, client: Client) -> Document:
        """Return the ``$clusterTime`` of a reply to a client.

        It is signed, except for servers and on open clusters.
        """
        account = self.account(client)
        if not self.enforced or (account is not None and account.name == SERVERS):
            return {"clusterTime": time, "signature": _UNSIGNED}
        message = (as_ordinal(time) | _RANGE).to_bytes(8, "little")
        digest = Binary(hmac.digest(self._secret, message, "sha1"))
        return {"clusterTime": time, "signature": {"hash": digest, "keyId": Int64(self._key_id)}}
