"""Sessions, and the commit and abort of transactions."""

from embedded.commands.request import Request, command
from embedded.errors import no_such_transaction, type_mismatch
from embedded.sessions import session_key
from embedded.storage.bson_values import Document


@command("startSession")
async def start_session(request: Request) -> Document:
    """Return a new session id."""
    return {"id": {"id": request.mongod.new_uuid()}, "timeoutMinutes": 30}


@command("refreshSessions")
async def refresh_sessions(_request: Request) -> Document:
    """Do nothing, because sessions do not time out here."""
    return {}


@command("endSessions", "killSessions")
async def end_sessions(request: Request) -> Document:
    """Abort the sessions' transactions and close their cursors."""
    for lsid in request.field(request.name, list, []):
        if not isinstance(lsid, dict):
            raise type_mismatch(f"'{request.name}' contains a value that is not a session id")
        identifier = lsid.get("id")
        if not isinstance(identifier, bytes):
            continue
        request.mongod.cursors.end_session(session_key(lsid))
        session = request.mongod.sessions.find(lsid)
        transaction = session.transaction if session is not None else None
        if transaction is not None and transaction.state == "in progress":
            request.mongod.journal.abort(transaction)
    return {}


def _numbers(request: Request) -> tuple[Document, int]:
    lsid, number = request.command.get("lsid"), request.command.get("txnNumber")
    if not isinstance(lsid, dict) or not isinstance(number, int):
        raise no_such_transaction("Transaction isn't in progress")
    return lsid, number


@command("commitTransaction")
async def commit_transaction(request: Request) -> Document:
    """Commit a transaction. Committing it again succeeds."""
    request.mongod.commit_transaction(*_numbers(request))
    return {}


@command("abortTransaction")
async def abort_transaction(request: Request) -> Document:
    """Abort a transaction."""
    request.mongod.abort_transaction(*_numbers(request))
    return {}
