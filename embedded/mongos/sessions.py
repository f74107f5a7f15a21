"""Sessions, and the commit and abort of transactions."""

from typing import Any

from embedded.errors import CommandError, ErrorCode
from embedded.mongos.request import RoutedRequest
from embedded.sessions import session_key
from embedded.storage.bson_values import Document


async def end_sessions(request: RoutedRequest) -> Document:
    """Run endSessions or killSessions: close the sessions' cursors and abort their transactions."""
    sessions: list[Any] = request.field(request.name, list)
    for lsid in sessions:
        request.state.transactions.end_session(lsid)
        request.state.cursors.end_session(session_key(lsid))
    return {}


async def commit_transaction(request: RoutedRequest) -> Document:
    """Commit on all participants.

    Raises:
        CommandError: 251 NoSuchTransaction if the transaction was aborted; 125 outside of a
            transaction.
    """
    if request.transaction is None:
        raise _not_in_transaction("commitTransaction")
    request.touched.update(dict.fromkeys(request.transaction.participants))
    request.state.transactions.commit(request.transaction)
    return {}


async def abort_transaction(request: RoutedRequest) -> Document:
    """Abort on all participants.

    Raises:
        CommandError: 256 TransactionCommitted if it was committed; 251 if it was already aborted;
            125 outside of a transaction.
    """
    transaction = request.transaction
    if transaction is None:
        raise _not_in_transaction("abortTransaction")
    if transaction.state == "committed":
        raise CommandError(
            256,
            f"Transaction {transaction.number} has been committed.",
            code_name="TransactionCommitted",
        )
    if transaction.state == "aborted":
        raise CommandError(
            ErrorCode.NoSuchTransaction, f"Transaction {transaction.number} has been aborted."
        )
    request.state.transactions.abort(transaction)
    return {}


def _not_in_transaction(name: str) -> CommandError:
    return CommandError(125, f"{name} must be run within a transaction", code_name="CommandFailed")
