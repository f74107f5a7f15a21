"""The names of mongos's commands: before the login it refuses these, and does not know others."""

from typing import Final

_NAMES: Final = [
    "abortReshardCollection", "abortTransaction", "addShard", "addShardToZone", "aggregate",
    "appendOplogNote", "balancerCollectionStatus", "balancerStart", "balancerStatus",
    "balancerStop", "cleanupReshardCollection", "clearJumboFlag", "clearLog", "collMod",
    "collStats", "commitReshardCollection", "commitTransaction", "compact",
    "compactStructuredEncryptionData", "configureCollectionBalancing", "connPoolStats",
    "connPoolSync", "convertToCapped", "count", "create", "createIndexes", "createRole",
    "createUser", "currentOp", "dataSize", "dbStats", "delete", "distinct", "drop",
    "dropAllRolesFromDatabase", "dropAllUsersFromDatabase", "dropConnections", "dropDatabase",
    "dropIndexes", "dropRole", "dropUser", "enableSharding", "endSessions", "explain", "features",
    "filemd5", "find", "findAndModify", "flushRouterConfig", "fsync", "fsyncUnlock",
    "getClusterParameter", "getCmdLineOpts", "getDefaultRWConcern", "getDiagnosticData", "getLog",
    "getMore", "getParameter", "getShardMap", "getShardVersion", "grantPrivilegesToRole",
    "grantRolesToRole", "grantRolesToUser", "hostInfo", "insert", "invalidateUserCache",
    "killAllSessions", "killAllSessionsByPattern", "killCursors", "killOp", "killSessions",
    "listCollections", "listDatabases", "listIndexes", "listShards", "logRotate", "logout",
    "mapReduce", "mergeChunks", "moveChunk", "movePrimary", "moveRange", "multicast", "netstat",
    "planCacheClear", "planCacheClearFilters", "planCacheListFilters", "planCacheSetFilter",
    "profile", "refineCollectionShardKey", "refreshSessions", "removeShard", "removeShardFromZone",
    "renameCollection", "repairShardedCollectionChunksHistory", "replSetGetStatus",
    "reshardCollection", "revokePrivilegesFromRole", "revokeRolesFromRole", "revokeRolesFromUser",
    "rolesInfo", "rotateCertificates", "serverStatus", "setAllowMigrations", "setClusterParameter",
    "setDefaultRWConcern", "setFeatureCompatibilityVersion", "setIndexCommitQuorum", "setParameter",
    "setProfilingFilterGlobally", "setUserWriteBlockMode", "shardCollection", "shutdown", "split",
    "splitVector", "startRecordingTraffic", "startSession", "stopRecordingTraffic", "update",
    "updateRole", "updateUser", "updateZoneKeyRange", "usersInfo", "validate", "validateDBMetadata",
]  # fmt: skip
"""The commands that ``listCommands`` of mongos 6.0 lists with ``requiresAuth``, without internal
commands and those for tests."""

_ALIASES: Final = [
    "addshard", "addshardtozone", "collstats", "connpoolsync", "datasize", "dbstats",
    "enablesharding", "findandmodify", "flushrouterconfig", "getshardversion", "listshards",
    "mapreduce", "movechunk", "moveprimary", "removeshard", "removeshardfromzone",
    "shardcollection",
]  # fmt: skip
"""Former names of such commands, which mongos 6.0 still accepts."""

NEED_LOGIN: Final = frozenset(_NAMES) | frozenset(_ALIASES)
