"""The privileges that each command takes.

Source: MongoDB's manual, "Privilege Actions" and the pages of the commands.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from embedded.access.privileges import CLUSTER, EVERY_DATABASE, Resource
from embedded.storage.bson_values import Document

Requirement = tuple[Resource, tuple[str, ...]]
_Rule = Callable[[str, Document], Iterable[Requirement]]

WITHOUT_LOGIN = frozenset(
    {
        "hello", "isMaster", "ismaster", "saslStart", "saslContinue", "authenticate",
        "ping", "buildInfo", "buildinfo", "connectionStatus", "whatsmyuri", "isdbgrid",
        "listCommands",
    }
)  # fmt: skip
"""Commands that every client may run."""

WITHOUT_RIGHTS = frozenset(
    {
        "logout", "startSession", "endSessions", "refreshSessions", "killSessions",
        "getMore", "killCursors", "commitTransaction", "abortTransaction", "listDatabases",
        "getDefaultRWConcern", "usersInfo", "replSetIsMaster",
    }
)  # fmt: skip
"""Commands that every user may run; some of them check the rest themselves."""


def requirements(name: str, database: str, command: Document) -> Iterable[Requirement]:
    """Return what a command takes; what is not known takes a member's rights."""
    rule = _RULES.get(name)
    if rule is None:
        return [(CLUSTER, ("internal",))]
    return rule(database, command)


def _named(database: str, command: Document) -> Resource:
    """Return the collection that the command's first value names, or the database."""
    target = next(iter(command.values()))
    return Resource(database, target if isinstance(target, str) else "")


def _on_namespace(text: Any) -> Resource:
    database, _, collection = str(text).partition(".")
    return Resource(database, collection)


def _cluster(*actions: str) -> _Rule:
    return lambda _database, _command: [(CLUSTER, actions)]


def _collection(*actions: str) -> _Rule:
    return lambda database, command: [(_named(database, command), actions)]


def _database(*actions: str) -> _Rule:
    return lambda database, _command: [(Resource(database), actions)]


def _namespace(*actions: str) -> _Rule:
    return lambda _database, command: [(_on_namespace(next(iter(command.values()))), actions)]


def _update(database: str, command: Document) -> Iterable[Requirement]:
    yield _named(database, command), ("update",)
    statements = command.get("updates")
    if isinstance(statements, list) and any(
        isinstance(each, Mapping) and each.get("upsert") for each in statements
    ):
        yield _named(database, command), ("insert",)


def _find_and_modify(database: str, command: Document) -> Iterable[Requirement]:
    actions: tuple[str, ...] = ("find", "remove") if command.get("remove") else ("find", "update")
    if command.get("upsert"):
        actions = (*actions, "insert")
    yield _named(database, command), actions


def _explain(_database: str, command: Document) -> Iterable[Requirement]:
    inner = command.get("explain")
    if isinstance(inner, Mapping) and inner:
        return requirements(next(iter(inner)), _database, dict(inner))
    return ()


def _rename(_database: str, command: Document) -> Iterable[Requirement]:
    source, target = _on_namespace(command["renameCollection"]), _on_namespace(command.get("to"))
    if source.database == target.database:
        yield Resource(source.database), ("renameCollectionSameDB",)
    else:
        yield source, ("find", "dropCollection")
        yield target, ("insert", "createIndex")
    if command.get("dropTarget"):
        yield target, ("dropCollection",)


def _create(database: str, command: Document) -> Iterable[Requirement]:
    yield _named(database, command), ("createCollection",)
    if command.get("viewOn"):
        yield from _pipeline(Resource(database, str(command["viewOn"])), command)


def _aggregate(database: str, command: Document) -> Iterable[Requirement]:
    target = _named(database, command)
    stages = [each for each in command.get("pipeline") or () if isinstance(each, Mapping)]
    first = next(iter(stages[0]), "") if stages else ""
    if first == "$changeStream":
        whole = not target.collection and database == "admin"
        yield EVERY_DATABASE if whole else target, ("changeStream", "find")
    elif first == "$currentOp":
        yield CLUSTER, ("inprog",)
    elif first == "$collStats":
        yield target, ("collStats",)
    elif first == "$indexStats":
        yield target, ("indexStats",)
    elif first != "$documents":
        yield target, ("find",)
    yield from _pipeline(None, command)


def _pipeline(target: Resource | None, command: Mapping[str, Any]) -> Iterable[Requirement]:
    """Yield what the stages of a pipeline take on other collections than its own."""
    if target is not None:
        yield target, ("find",)
    database = str(command.get("$db", ""))
    for stage in command.get("pipeline") or ():
        if isinstance(stage, Mapping):
            for name, argument in stage.items():
                yield from _of_stage(database, name, argument)


def _of_stage(database: str, name: str, argument: Any) -> Iterator[Requirement]:
    fields: Mapping[str, Any] = argument if isinstance(argument, Mapping) else {}
    if name in ("$lookup", "$graphLookup") and "from" in fields:
        yield Resource(database, str(fields["from"])), ("find",)
    elif name == "$unionWith":
        yield Resource(database, str(fields.get("coll", argument))), ("find",)
    elif name == "$out":
        yield _target(database, argument), ("insert", "remove")
    elif name == "$merge":
        yield _target(database, fields.get("into", argument)), ("insert", "update")
    if name in ("$lookup", "$unionWith", "$merge"):
        for inner in fields.get("pipeline") or ():
            if isinstance(inner, Mapping):
                for each, its_argument in inner.items():
                    yield from _of_stage(database, each, its_argument)


def _target(database: str, named: Any) -> Resource:
    if isinstance(named, Mapping):
        return Resource(str(named.get("db", database)), str(named.get("coll", "")))
    return Resource(database, str(named))


def _with_roles(*actions: str) -> _Rule:
    """Return the rule of a command on users that also grants the roles in its ``roles``."""

    def rule(database: str, command: Document) -> Iterable[Requirement]:
        yield Resource(database), actions
        for role in command.get("roles") or ():
            of_role = role.get("db", database) if isinstance(role, Mapping) else database
            yield Resource(str(of_role)), ("grantRole",)

    return rule


def _revoke(database: str, command: Document) -> Iterable[Requirement]:
    for role in command.get("roles") or ():
        of_role = role.get("db", database) if isinstance(role, Mapping) else database
        yield Resource(str(of_role)), ("revokeRole",)


_RULES: dict[str, _Rule] = {
    "find": _collection("find"),
    "count": _collection("find"),
    "distinct": _collection("find"),
    "aggregate": _aggregate,
    "insert": _collection("insert"),
    "update": _update,
    "delete": _collection("remove"),
    "findAndModify": _find_and_modify,
    "findandmodify": _find_and_modify,
    "explain": _explain,
    "create": _create,
    "drop": _collection("dropCollection"),
    "dropDatabase": _database("dropDatabase"),
    "renameCollection": _rename,
    "createIndexes": _collection("createIndex"),
    "dropIndexes": _collection("dropIndex"),
    "deleteIndexes": _collection("dropIndex"),
    "collMod": _collection("collMod"),
    "validate": _collection("validate"),
    "listCollections": _database("listCollections"),
    "listIndexes": _collection("listIndexes"),
    "dbStats": _database("dbStats"),
    "dbstats": _database("dbStats"),
    "collStats": _collection("collStats"),
    "collstats": _collection("collStats"),
    "profile": _database("enableProfiler"),
    "enableSharding": lambda _database, command: [
        (Resource(str(command["enableSharding"])), ("enableSharding",))
    ],
    "shardCollection": _namespace("enableSharding"),
    "refineCollectionShardKey": _namespace("refineCollectionShardKey"),
    "reshardCollection": _namespace("reshardCollection"),
    "split": _namespace("splitChunk"),
    "moveChunk": _namespace("moveChunk"),
    "moveRange": _namespace("moveChunk"),
    "movePrimary": lambda _database, command: [
        (Resource(str(command["movePrimary"])), ("moveChunk",))
    ],
    "addShard": _cluster("addShard"),
    "startShard": _cluster("addShard"),
    "removeShard": _cluster("removeShard"),
    "switchMember": _cluster("shutdown"),
    "balancerStatus": lambda _database, _command: [(Resource("config", "settings"), ("find",))],
    "balancerStart": lambda _database, _command: [(Resource("config", "settings"), ("update",))],
    "balancerStop": lambda _database, _command: [(Resource("config", "settings"), ("update",))],
    "createUser": _with_roles("createUser"),
    "updateUser": _with_roles("changePassword", "changeCustomData"),
    "dropUser": _database("dropUser"),
    "dropAllUsersFromDatabase": _database("dropUser"),
    "grantRolesToUser": _with_roles(),
    "revokeRolesFromUser": _revoke,
    "createRole": _with_roles("createRole"),
    "dropRole": _database("dropRole"),
    "rolesInfo": _database("viewRole"),
    "killAllSessions": _cluster("killAnySession"),
    "currentOp": _cluster("inprog"),
    "replSetInitiate": _cluster("replSetConfigure"),
    "getParameter": _cluster("getParameter"),
    "setFeatureCompatibilityVersion": _cluster("setFeatureCompatibilityVersion"),
    "fsync": _cluster("fsync"),
    **{
        name: _cluster(name)
        for name in (
            "appendOplogNote", "flushRouterConfig", "getCmdLineOpts", "getLog", "getShardMap",
            "hostInfo", "listShards", "logRotate", "replSetGetConfig", "replSetGetStatus",
            "serverStatus", "setParameter",
        )
    },
}  # fmt: skip
