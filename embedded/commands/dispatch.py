"""Execution of a command: sessions, transactions, read concern, and the call of its handler.

Source: docs/protocol.md#sharded-cluster (reads after a cluster time).
"""

import asyncio
from typing import Any

from bson.timestamp import Timestamp

from embedded.client import Client
from embedded.commands import (  # noqa: F401 (imported to be registered)
    ddl,
    diagnostics,
    handshake,
    indexes,
    logins,
    reads,
    replication,
    sessions,
    writes,
)
from embedded.commands.request import COMMANDS, IN_TRANSACTIONS, Request
from embedded.errors import (
    TRANSIENT_CODES,
    TRANSIENT_TRANSACTION,
    CommandError,
    ErrorCode,
    command_not_found,
    no_such_transaction,
    not_in_transactions,
    transaction_started_before,
    transaction_too_old,
    unknown_transaction,
)
from embedded.logical_clock import as_ordinal
from embedded.member import Member
from embedded.sessions import Session
from embedded.storage.bson_values import Document
from embedded.transactions import LIFETIME_SECONDS, Transaction

_ENDS = frozenset({"commitTransaction", "abortTransaction"})


async def execute(mongod: Member, database: str, command: Document, client: Client) -> Document:
    """Run one command on ``mongod`` and return its reply.

    An error, or the end of the client's connection, aborts the command's transaction.

    Raises:
        CommandError: the command fails.
    """
    name = next(iter(command), "")
    handler = COMMANDS.get(name)
    if handler is None:
        raise command_not_found(name)
    mongod.access.check(name, database, command, client)
    request = Request(mongod, database, name, command, client)
    if command.get("lsid") is not None:
        request.session = mongod.sessions.get(command["lsid"])
        if command.get("txnNumber") is not None and name not in _ENDS:
            _join(request, request.session)
    _reach_read_time(request)
    transaction = request.transaction
    if transaction is None:
        return await handler(request)
    if name not in IN_TRANSACTIONS:
        raise not_in_transactions(name)
    try:
        return await handler(request)
    except BaseException as error:
        if transaction.is_open:
            mongod.journal.abort(transaction)
        if isinstance(error, CommandError) and error.code in TRANSIENT_CODES:
            error.labels |= {TRANSIENT_TRANSACTION}
        raise


def _join(request: Request, session: Session) -> None:
    """Set the retryable write or transaction that the command belongs to, or raise CommandError."""
    number = int(request.command["txnNumber"])
    if number < session.txn_number:
        raise transaction_too_old(number, session.txn_number)
    if request.command.get("autocommit") is not False:
        if session.transaction is not None and session.transaction.txn_number == number:
            raise CommandError(
                217,
                "Cannot retry a retryable write that has been converted into a transaction",
                code_name="IncompleteTransactionHistory",
            )
        _abort_open(request, session, number)
        session.advance_to(number)
        request.is_retryable = True
        return
    if request.command.get("startTransaction"):
        _begin(request, session, number)
    transaction = session.transaction
    if transaction is None or transaction.txn_number != number:
        raise unknown_transaction(number, session.txn_number)
    if transaction.state != "in progress":
        raise no_such_transaction(f"Transaction {number} has been {transaction.state}.")
    request.transaction = transaction


def _abort_open(request: Request, session: Session, number: int) -> None:
    open_one = session.transaction
    if open_one is not None and number > open_one.txn_number and open_one.state == "in progress":
        request.mongod.journal.abort(open_one)


def _begin(request: Request, session: Session, number: int) -> None:
    if session.transaction is not None and session.txn_number == number:
        raise transaction_started_before(number)
    _abort_open(request, session, number)
    session.advance_to(number)
    journal = request.mongod.journal
    transaction = Transaction(session.lsid, number, journal.position, journal.isolation)
    session.transaction = transaction

    def expire() -> None:
        if transaction.state == "in progress":
            journal.abort(transaction)

    loop = asyncio.get_running_loop()
    transaction.expiry = loop.call_later(LIFETIME_SECONDS, expire)


def _reach_read_time(request: Request) -> None:
    """Advance the oplog to ``afterClusterTime`` or ``atClusterTime`` before a read.

    There are no old versions of documents: a read at a time is answered if the oplog shows that its
    namespace has not changed since, and otherwise refused as one from before the snapshot window.
    """
    concern: Any = request.command.get("readConcern")
    if not isinstance(concern, dict):
        return
    for name in ("afterClusterTime", "atClusterTime"):
        wanted = concern.get(name)
        if not isinstance(wanted, Timestamp):
            continue
        mongod = request.mongod
        if as_ordinal(wanted) > as_ordinal(mongod.clock.time):
            raise CommandError(
                ErrorCode.InvalidOptions,
                f"readConcern {name} value must not be greater than the current clusterTime. "
                f"Requested clusterTime: {wanted}; current clusterTime: {mongod.clock.time}",
            )
        if as_ordinal(wanted) > mongod.journal.position:
            mongod.append_noop({"msg": "advance to the cluster time of a read"})
        if name == "atClusterTime" and request.transaction is None:
            _refuse_changed_since(request, wanted)


def _refuse_changed_since(request: Request, wanted: Timestamp) -> None:
    namespace = f"{request.database}.{request.command[request.name]}"
    oplog = request.mongod.oplog
    truncated = oplog.truncated_through
    if (truncated is not None and wanted < truncated) or any(
        entry["op"] == "c" or (entry["op"] != "n" and entry["ns"] == namespace)
        for entry in oplog.since(wanted)
    ):
        raise CommandError(
            239,
            f"Read timestamp {wanted} is older than the oldest available timestamp.",
            code_name="SnapshotTooOld",
        )
