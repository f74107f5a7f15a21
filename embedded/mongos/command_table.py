"""The commands of the embedded mongos, by name."""

from collections.abc import Awaitable, Callable

from embedded.mongos import (
    aggregations,
    ddl,
    diagnostics,
    find_and_modify,
    listings,
    logins,
    reads,
    resharding,
    sessions,
    shard_collection,
    sharding_admin,
    statistics,
    switches,
    users,
    views,
    writes,
)
from embedded.mongos.request import Request
from embedded.storage.bson_values import Document

Handler = Callable[[Request], Awaitable[Document]]

COMMANDS: dict[str, Handler] = {
    # Reads and writes
    "insert": writes.insert,
    "update": writes.update,
    "delete": writes.delete,
    "findAndModify": find_and_modify.find_and_modify,
    "findandmodify": find_and_modify.find_and_modify,
    "find": views.find,
    "count": views.count,
    "distinct": views.distinct,
    "aggregate": aggregations.aggregate,
    "getMore": reads.get_more,
    "killCursors": reads.kill_cursors,
    "explain": statistics.explain,
    # Collections and databases
    "create": ddl.create,
    "drop": ddl.drop,
    "dropDatabase": ddl.drop_database,
    "renameCollection": ddl.rename_collection,
    "createIndexes": ddl.create_indexes,
    "dropIndexes": ddl.on_all_holders,
    "deleteIndexes": ddl.on_all_holders,
    "collMod": ddl.on_all_holders,
    "listCollections": listings.list_collections,
    "listIndexes": listings.list_indexes,
    "listDatabases": listings.list_databases,
    "dbStats": statistics.database_stats,
    "dbstats": statistics.database_stats,
    "collStats": statistics.collection_stats,
    "collstats": statistics.collection_stats,
    # Sharding
    "enableSharding": shard_collection.enable_sharding,
    "shardCollection": shard_collection.shard_collection,
    "refineCollectionShardKey": resharding.refine_shard_key,
    "reshardCollection": resharding.reshard,
    "split": sharding_admin.split,
    "moveChunk": sharding_admin.move,
    "moveRange": sharding_admin.move,
    "movePrimary": sharding_admin.move_primary,
    "addShard": sharding_admin.add_shard,
    "removeShard": sharding_admin.remove_shard,
    "listShards": sharding_admin.list_shards,
    "getShardMap": sharding_admin.shard_map,
    "startShard": sharding_admin.start_shard,
    "switchMember": switches.switch_member,
    "balancerStatus": sharding_admin.balancer_status,
    "balancerStart": sharding_admin.balancer_status,
    "balancerStop": sharding_admin.balancer_status,
    "flushRouterConfig": diagnostics.ping,
    # Sessions and transactions
    "startSession": sessions.start_session,
    "endSessions": sessions.end_sessions,
    "killSessions": sessions.end_sessions,
    "refreshSessions": sessions.refresh_sessions,
    "commitTransaction": sessions.commit_transaction,
    "abortTransaction": sessions.abort_transaction,
    # Logins and users
    "saslStart": logins.sasl_start,
    "saslContinue": logins.sasl_continue,
    "authenticate": logins.authenticate,
    "logout": logins.log_out,
    "connectionStatus": logins.connection_status,
    "usersInfo": users.users_info,
    **dict.fromkeys(users.ON_CONFIG_SERVER, users.on_config_server),
    # Diagnostics
    "hello": diagnostics.hello,
    "isMaster": diagnostics.hello,
    "ismaster": diagnostics.hello,
    "ping": diagnostics.ping,
    "buildInfo": diagnostics.build_info,
    "buildinfo": diagnostics.build_info,
    "whatsmyuri": diagnostics.whats_my_uri,
    "serverStatus": diagnostics.server_status,
    "getCmdLineOpts": diagnostics.command_line,
    "getParameter": diagnostics.get_parameter,
    "hostInfo": diagnostics.host_info,
    "getLog": diagnostics.get_log,
    "isdbgrid": diagnostics.is_db_grid,
    "currentOp": diagnostics.current_operations,
    "replSetGetStatus": diagnostics.not_through_mongos,
    "replSetGetConfig": diagnostics.not_through_mongos,
}


async def list_commands(_request: Request) -> Document:
    """Return the names of all commands."""
    return {"commands": {name: {"help": ""} for name in sorted(COMMANDS)}}


COMMANDS["listCommands"] = list_commands

ON_ADMIN_ONLY = frozenset(
    [
        "renameCollection",
        "listDatabases",
        "enableSharding",
        "shardCollection",
        "refineCollectionShardKey",
        "reshardCollection",
        "split",
        "moveChunk",
        "moveRange",
        "movePrimary",
        "addShard",
        "removeShard",
        "listShards",
        "getShardMap",
        "startShard",
        "switchMember",
        "balancerStatus",
        "balancerStart",
        "balancerStop",
        "commitTransaction",
        "abortTransaction",
        "getCmdLineOpts",
        "getParameter",
        "getLog",
        "currentOp",
    ]
)
"""Commands that must be sent to the admin database."""

IN_TRANSACTIONS = frozenset(
    [
        "insert",
        "update",
        "delete",
        "findAndModify",
        "findandmodify",
        "find",
        "aggregate",
        "distinct",
        "getMore",
        "killCursors",
        "create",
        "createIndexes",
        "hello",
        "isMaster",
        "ismaster",
        "ping",
    ]
)
"""Commands that transactions permit."""
