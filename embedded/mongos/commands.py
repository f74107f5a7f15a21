"""The embedded mongos: its commands by name, and how it runs one."""

from collections.abc import Awaitable, Callable

from embedded.client import Client
from embedded.errors import (
    TRANSIENT_CODES,
    TRANSIENT_TRANSACTION,
    CommandError,
    ErrorCode,
    not_in_transactions,
)
from embedded.logical_clock import as_ordinal, client_time
from embedded.mongos import (
    ddl,
    diagnostics,
    reads,
    sessions,
    shard_collection,
    sharding_admin,
    writes,
)
from embedded.mongos.request import ClusterState, RoutedRequest
from embedded.storage.bson_values import Document

_Handler = Callable[[RoutedRequest], Awaitable[Document]]

_IN_TRANSACTIONS: dict[str, _Handler] = {
    "insert": writes.insert,
    "update": writes.update,
    "delete": writes.delete,
    "find": reads.find,
    "aggregate": reads.aggregate,
    "getMore": reads.get_more,
    "killCursors": reads.kill_cursors,
    "create": ddl.create,
    "createIndexes": ddl.create_indexes,
    "hello": diagnostics.hello,
    "isMaster": diagnostics.hello,
    "ismaster": diagnostics.hello,
}
"""Commands that transactions permit."""

_ON_ADMIN: dict[str, _Handler] = {
    "renameCollection": ddl.rename_collection,
    "listDatabases": reads.list_databases,
    "enableSharding": shard_collection.enable_sharding,
    "shardCollection": shard_collection.shard_collection,
    "split": sharding_admin.split,
    "moveChunk": sharding_admin.move,
    "movePrimary": sharding_admin.move_primary,
    "addShard": sharding_admin.add_shard,
    "removeShard": sharding_admin.remove_shard,
    "listShards": sharding_admin.list_shards,
    "startShard": sharding_admin.start_shard,
    "switchMember": sharding_admin.switch_member,
    "commitTransaction": sessions.commit_transaction,
    "abortTransaction": sessions.abort_transaction,
    "getCmdLineOpts": diagnostics.command_line,
}
"""Commands that must be sent to the admin database."""

_COMMANDS: dict[str, _Handler] = {
    **_IN_TRANSACTIONS,
    **_ON_ADMIN,
    **dict.fromkeys(diagnostics.ON_CONFIG_SERVER, diagnostics.on_config_server),
    "count": reads.count,
    "drop": ddl.drop,
    "dropDatabase": ddl.drop_database,
    "dropIndexes": ddl.modify,
    "collMod": ddl.modify,
    "listCollections": reads.list_collections,
    "listIndexes": reads.list_indexes,
    "endSessions": sessions.end_sessions,
    "killSessions": sessions.end_sessions,
    "serverStatus": diagnostics.server_status,
}

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
        handler = _COMMANDS.get(name)
        if handler is None:
            raise CommandError(ErrorCode.CommandNotFound, f"no such cmd: {name}")
        if name in _ON_ADMIN and request.database != "admin":
            raise CommandError(
                ErrorCode.Unauthorized, f"{name} may only be run against the admin database."
            )
        self._state.access.check(name, request.database, request.command, request.client)
        if name in ("aggregate", "explain"):
            reads.refuse_change_stream(request.command)
        request.transaction = self._state.transactions.statement(request.command)
        if request.transaction is None or name in _ENDS_OF_TRANSACTIONS:
            return await handler(request)
        if name not in _IN_TRANSACTIONS:
            raise not_in_transactions(name)
        return await self._in_transaction(request)

    async def _in_transaction(self, request: RoutedRequest) -> Document:
        """Run a statement; an error in it aborts its transaction on all shards."""
        transaction = request.transaction
        assert transaction is not None
        try:
            reply = await _COMMANDS[request.name](request)
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
