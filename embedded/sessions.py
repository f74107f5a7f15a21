"""Logical sessions: each session's completed retryable writes and its transaction."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from embedded.errors import type_mismatch
from embedded.transactions import Transaction

_MOST_SESSIONS = 10_000
_NOBODY = sha256(b"").digest()
"""The ``uid`` of sessions without authentication."""


class Session:
    """A member's state of one session."""

    def __init__(self, lsid: dict[str, Any]) -> None:
        self.lsid = lsid
        self.txn_number = -1
        self.statements: dict[int, Any] = {}
        self.transaction: Transaction | None = None

    def advance_to(self, txn_number: int) -> None:
        """Begin a retryable write or a transaction, or continue it if the number is the current."""
        if txn_number > self.txn_number:
            self.txn_number = txn_number
            self.statements = {}
            self.transaction = None


class SessionTable:
    """Sessions by id and user; above 10,000 the least recently used session is dropped."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()

    def get(self, lsid: dict[str, Any]) -> Session:
        """Return the session, creating it if necessary."""
        key = session_key(lsid)
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = Session(full_lsid(lsid))
            if len(self._sessions) > _MOST_SESSIONS:
                self._drop_oldest()
        else:
            self._sessions.move_to_end(key)
        return session

    def find(self, lsid: dict[str, Any]) -> Session | None:
        """Return the session, None if it does not exist."""
        return self._sessions.get(session_key(lsid))

    def _drop_oldest(self) -> None:
        for key, session in self._sessions.items():
            if session.transaction is None or not session.transaction.is_open:
                del self._sessions[key]
                return

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))


def full_lsid(lsid: dict[str, Any]) -> dict[str, Any]:
    """Return the session id with the user's digest, as in the oplog and in events."""
    return {"id": lsid["id"], "uid": lsid.get("uid", _NOBODY)}


def session_key(lsid: Any) -> bytes:
    """Return what tells a session from others: its id and its user's digest.

    Raises CommandError 14 TypeMismatch for what is no session.
    """
    if not isinstance(lsid, Mapping) or not isinstance(lsid.get("id"), bytes):
        raise type_mismatch("'lsid' is the wrong type, expected type 'object'")
    uid = lsid.get("uid")
    return bytes(lsid["id"]) + (bytes(uid) if isinstance(uid, bytes) else _NOBODY)
