"""The embedded mongos: receives commands and returns replies."""

from embedded.client import Client
from embedded.errors import (
    TRANSIENT_CODES,
    TRANSIENT_TRANSACTION,
    CommandError,
    ErrorCode,
    not_in_transactions,
)
from embedded.logical_clock import as_ordinal, client_time
from embedded.mongos.command_table import COMMANDS, IN_TRANSACTIONS, ON_ADMIN_ONLY
from embedded.mongos.reads import refuse_change_stream
from embedded.mongos.request import ClusterState, RoutedRequest
from embedded.storage.bson_values import Document

_ENDS_OF_TRANSACTIONS = ("commitTransaction", "abortTransaction")


class Mongos:
    """Routes all commands except change streams to the shards (docs/protocol.md#sharded-cluster).

    It is the command handler of an ``embedded.server.Server``.

    Args:
        state: the cluster.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    async def run_command(self, database: str, command: Document, client: Client) -> Document:
        """Run one command and return its complete reply; errors become ``ok: 0``.

        The reply includes ``$clusterTime`` and ``operationTime``.
        """
        request = RoutedRequest(self._state, database, command, client)
        try:
            time = client_time(command)
            if time is not None:
                self._state.catalog.gossip.advance(time)
            reply = {**await self._execute(request), "ok": 1.0}
        except CommandError as error:
            reply = error.to_reply()
        return self._with_times(request, reply)

    async def _execute(self, request: RoutedRequest) -> Document:
        name = request.name
        handler = COMMANDS.get(name)
        if handler is None:
            raise CommandError(ErrorCode.CommandNotFound, f"no such cmd: {name}")
        if name in ON_ADMIN_ONLY and request.database != "admin":
            raise CommandError(
                ErrorCode.Unauthorized, f"{name} may only be run against the admin database."
            )
        self._state.access.check(name, request.database, request.command, request.client)
        if name in ("aggregate", "explain"):
            refuse_change_stream(request.command)
        request.transaction = self._state.transactions.statement(request.command)
        if request.transaction is None or name in _ENDS_OF_TRANSACTIONS:
            return await handler(request)
        if name not in IN_TRANSACTIONS:
            raise not_in_transactions(name)
        return await self._in_transaction(request)

    async def _in_transaction(self, request: RoutedRequest) -> Document:
        """Run a statement; an error in it aborts its transaction on all shards."""
        transaction = request.transaction
        assert transaction is not None
        try:
            reply = await COMMANDS[request.name](request)
        except BaseException as error:
            self._state.transactions.abort(transaction)
            if isinstance(error, CommandError) and error.code in TRANSIENT_CODES:
                error.labels |= {TRANSIENT_TRANSACTION}
            raise
        if reply.get("writeErrors"):
            self._state.transactions.abort(transaction)
        return reply

    def _with_times(self, request: RoutedRequest, reply: Document) -> Document:
        catalog = self._state.catalog
        shards = request.touched or {catalog.config: None}
        times = [shard.operation_time for shard in shards]
        reply["$clusterTime"] = self._state.access.shown(catalog.gossip.time, request.client)
        reply["operationTime"] = max(times, key=as_ordinal)
        return reply
