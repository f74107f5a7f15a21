"""Sessions, and the commit and abort of transactions."""

from typing import Any

from embedded.errors import no_such_transaction
from embedded.mongos.cluster_transactions import ClusterTransaction
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
        CommandError: 251 NoSuchTransaction if there is no transaction, or it was aborted.
    """
    transaction = _transaction(request)
    request.touched.update(dict.fromkeys(transaction.participants))
    request.state.transactions.commit(transaction)
    return {}


async def abort_transaction(request: RoutedRequest) -> Document:
    """Abort on all participants.

    Raises:
        CommandError: 251 NoSuchTransaction if there is no transaction, or it has ended.
    """
    transaction = _transaction(request)
    if transaction.state != "open":
        raise no_such_transaction(f"Transaction {transaction.number} has been {transaction.state}.")
    request.state.transactions.abort(transaction)
    return {}


def _transaction(request: RoutedRequest) -> ClusterTransaction:
    if request.transaction is None:
        raise no_such_transaction(f"{request.name} must be run within a transaction")
    return request.transaction
