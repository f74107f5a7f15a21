"""The owner of a cursor, and the checks that another client may not use it."""

import base64
import hashlib
from typing import NamedTuple
from uuid import UUID

from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError


class Owner(NamedTuple):
    """The owner of a cursor: the session's ``lsid.id`` as bytes and the user ``name@db``, if any.

    ``client`` is the address to which the cursor is charged; other addresses may read it, too.
    ``connection`` describes the connection that opened it: address, port and application.
    """

    lsid: bytes | None = None
    user: str | None = None
    client: str | None = None
    connection: str | None = None


def check_user(cursor_id: int, cursor_owner: Owner, asking: Owner) -> None:
    """Raise CommandError (13 Unauthorized) for another user's cursor."""
    if cursor_owner.user != asking.user:
        raise CommandError(
            ErrorCode.Unauthorized,
            f"cursor id {cursor_id} was not created by the authenticated user :: caused by :: "
            "User not authorized to access cursor",
        )


def check_session(cursor_id: int, cursor_owner: Owner, asking: Owner) -> None:
    """Raise CommandError for a getMore in a different session, with mongos's error codes."""
    created, used = cursor_owner.lsid, asking.lsid
    if created == used:
        return
    if cursor_owner.user is not None:
        raise CommandError(
            ErrorCode.Unauthorized,
            f"Cursor session id ({_session(cursor_owner)}) is not the same as the operation "
            f"context's session id ({_session(asking)})",
        )
    made, run = "not created in a session", "without an lsid"
    if created is not None:
        made = f"created in session {_session(cursor_owner)}"
    if used is not None:
        run = f"in session {_session(asking)}"
    code = 50799 if created is None else 50800 if used is None else 50801
    raise CommandError(code, f"Cannot run getMore on cursor {cursor_id}, which was {made}, {run}")


def _session(owner: Owner) -> str:
    """Return a session as mongos prints it: its id, and the hash of its user's name."""
    lsid = owner.lsid
    if lsid is None:
        return "none"
    digest = hashlib.sha256((owner.user or "").encode()).digest()
    name = str(UUID(bytes=lsid)) if len(lsid) == 16 else lsid.hex()
    return f"{name} - {base64.b64encode(digest).decode()} -  - "
