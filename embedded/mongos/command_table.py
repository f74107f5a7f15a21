"""The commands of the embedded mongos, by name."""

from collections.abc import Awaitable, Callable

from embedded.mongos import (
    ddl,
    diagnostics,
    reads,
    sessions,
    shard_collection,
    sharding_admin,
    writes,
)
from embedded.mongos.request import RoutedRequest
from embedded.storage.bson_values import Document

Handler = Callable[[RoutedRequest], Awaitable[Document]]

_IN_TRANSACTIONS: dict[str, Handler] = {
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

_ON_ADMIN: dict[str, Handler] = {
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

COMMANDS: dict[str, Handler] = {
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

ON_ADMIN_ONLY = frozenset(_ON_ADMIN)
"""Commands that must be sent to the admin database."""

IN_TRANSACTIONS = frozenset(_IN_TRANSACTIONS)
"""Commands that transactions permit."""
