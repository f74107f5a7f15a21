"""A real mongos and the router give the same answers to the same commands."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import bson
import pytest
from bson import Binary, Decimal128, Int64, Timestamp
from bson.binary import UUID_SUBTYPE

from router.commands.command import COMMANDS
from shard_client.errors import ErrorCode
from shard_client.wire.frames import build_msg
from tests.harness.clusters import start_real_cluster
from tests.harness.foreign_clients import GET, client_hello
from tests.harness.raw_client import RawClient, Reply
from tests.harness.routers import start_router
from tests.harness.until import PATIENCE
from tests.integration.change_stream_requests import FIELDS, OPTIONS, SESSION, STAGES

NOT_COMPARED = frozenset({"$clusterTime", "operationTime", "localTime", "topologyVersion"})
TOLD = ("ok", "code", "codeName", "errmsg")
WATCH: dict[str, Any] = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}
STRICT: dict[str, Any] = {"apiVersion": "1", "apiStrict": True}


class Pair(NamedTuple):
    """The ports of a mongos and of a router whose upstream it is."""

    mongos: int
    router: int


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with start_real_cluster(2, noop_interval=1) as cluster:
        options = {"enableTestCommands": "true"}
        router = start_router(cluster.configdb, cluster.mongos_uri, set_parameter=options)
        try:
            yield Pair(int(cluster.mongos.rpartition(":")[2]), router.port)
        finally:
            router.stop()


@asynccontextmanager
async def both(pair: Pair) -> AsyncIterator[tuple[RawClient, RawClient]]:
    async with (
        await RawClient.connect(pair.mongos) as mongos,
        await RawClient.connect(pair.router) as router,
    ):
        yield mongos, router


def compared(reply: Reply) -> Mapping[str, Any]:
    answer = {name: value for name, value in reply.items() if name not in NOT_COMPARED}
    if "cursor" in answer:
        cursor = answer["cursor"]
        answer["cursor"] = {name: cursor[name] for name in ("ns", "firstBatch")}
    return answer


async def same(pair: Pair, database: str, command: dict[str, Any], **how: Any) -> Mapping[str, Any]:
    """Run the command on both and require equal answers; return the answer."""
    async with both(pair) as (mongos, router):
        expected = compared(await mongos.command(database, command, **how))
        assert compared(await router.command(database, command, **how)) == expected
    return expected


@pytest.mark.parametrize(
    "sent",
    [
        client_hello(),
        GET,
        build_msg(bson.encode({"ping": 1, "$db": "admin"}), request_id=1, response_to=1),
    ],
    ids=["tls", "http", "response"],
)
async def test_clients_of_other_protocols_are_refused(pair: Pair, sent: bytes) -> None:
    answers = []
    for port in (pair.mongos, pair.router):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        answers.append(await reader.read())
        writer.close()
    assert answers[1] == answers[0]


SIGNATURE: dict[str, Any] = {"hash": Binary(b"\0" * 20, 0), "keyId": Int64(0)}
PAST = Timestamp(1_700_000_000, 1)
FAR_AHEAD = Timestamp(2**32 - 1, 1)
CLIENT_TIMES: list[Any] = [
    5,
    None,
    {},
    [],
    {"clusterTime": 5},
    {"clusterTime": PAST},
    {"clusterTime": PAST, "signature": "junk"},
    {"clusterTime": PAST, "signature": {}},
    {"clusterTime": PAST, "signature": {"hash": "x", "keyId": 0}},
    {"clusterTime": PAST, "signature": {"hash": b"1", "keyId": 0}},
    {"clusterTime": PAST, "signature": {"hash": Binary(b"\0" * 20, 5), "keyId": 0}},
    {"clusterTime": PAST, "signature": {"hash": Binary(b"\0" * 21, 0), "keyId": 0}},
    {"clusterTime": PAST, "signature": {"hash": b"\0" * 20}},
    {"clusterTime": PAST, "signature": {"hash": b"\0" * 20, "keyId": "x"}},
    {"clusterTime": PAST, "signature": {**SIGNATURE, "keyId": 1.5}},
    {"clusterTime": PAST, "signature": {**SIGNATURE, "keyId": Decimal128("1"), "pad": 1}, "pad": 1},
    {"clusterTime": Timestamp(0, 0), "signature": SIGNATURE},
    {"clusterTime": FAR_AHEAD},
]


async def test_client_times_far_ahead_are_refused(pair: Pair) -> None:
    time = {"clusterTime": FAR_AHEAD, "signature": SIGNATURE}
    command = {"ping": 1, "$clusterTime": time}
    async with both(pair) as (mongos, router):
        replies = [await each.command("admin", command) for each in (mongos, router)]
    for reply in replies:
        assert (reply["code"], reply["codeName"]) == (205, "ClusterTimeFailsRateLimiter")
        assert reply["errmsg"].startswith("New $clusterTime, 4294967295, is too far from this node")


TIME_LIMITS: list[Any] = [
    1.5, None, "1", -1, 2**31, 900.0, True, float("nan"), float("inf"), -0.5, 2147483648.5, [],
    Decimal128("900.5"), Decimal128("NaN"), Decimal128("1e300"), Int64(-(2**62)),
    Decimal128("-0.6"), Decimal128("2147483647.5"),
]  # fmt: skip
SNAPSHOT: dict[str, Any] = {"level": "snapshot"}
OPTIME: dict[str, Any] = {"ts": Timestamp(1, 1), "t": Int64(1)}
READ_CONCERNS: list[Any] = [
    None,
    [],
    {},
    {"x": 1, "level": 5},
    {"level": 5, "x": 1},
    {"level": None},
    {"level": "nope"},
    {"provenance": None},
    {"provenance": 5},
    {"provenance": "x"},
    {"provenance": "clientSupplied"},
    {"afterOpTime": 5},
    {"afterOpTime": {}},
    *({"level": "majority", "afterOpTime": {**OPTIME, "t": term}} for term in ("1", True, 1.5)),
    {"level": "majority", "afterOpTime": {"ts": 1, "t": "1"}},
    {"afterOpTime": OPTIME, "afterClusterTime": PAST},
    {**SNAPSHOT, "afterOpTime": OPTIME},
    *({"afterClusterTime": time} for time in (5, None, PAST, Timestamp(0, 0), Timestamp(0, 5))),
    *({"level": level, "afterClusterTime": PAST} for level in ("available", "linearizable")),
    {"level": "majority", "afterClusterTime": PAST, "atClusterTime": PAST},
    {"level": "majority", "atClusterTime": PAST},
    {**SNAPSHOT, "atClusterTime": Timestamp(0, 0)},
    {"atClusterTime": 5},
]


OF_ANY_COMMAND: list[dict[str, Any]] = [
    *({"maxTimeMS": limit} for limit in TIME_LIMITS),
    *({"readConcern": concern} for concern in READ_CONCERNS),
]
OF_GET_MORE: list[dict[str, Any]] = [
    *(
        {name: value}
        for name in (
            "lsid", "term", "lastKnownCommittedOpTime", "writeConcern", "$readPreference",
            "txnNumber", "autocommit", "startTransaction", "$client", "clientOperationKey",
            "tracking_info", "stmtId", "helloOk", "coordinator", "startOrContinueTransaction",
            "collection", "batchSize", "comment", "noCursorTimeout", "$audit",
        )
        for value in (None, 5, Int64(7), "x", True, {}, PAST, SESSION["id"])
    ),
    {"collection": ""},
    *({"writeConcern": {"w": value}} for value in (1, "majority", -1, [], None, {})),
    *({"writeConcern": {name: "x"}} for name in ("j", "wtimeout", "fsync", "provenance", "y")),
    *({"$readPreference": {"mode": value}} for value in (5, "x", "primary", "secondary")),
    *(
        {"$readPreference": {"mode": "nearest", **value}}
        for value in (
            {"tags": 5}, {"tags": [5]}, {"tags": [{"a": "b"}]}, {"maxStalenessSeconds": "x"},
            {"maxStalenessSeconds": 5}, {"hedge": 5}, {"hedge": {"enabled": True}}, {"x": 1},
        )
    ),
    *(field for field in FIELDS if "maxTimeMS" not in field),
    *OF_ANY_COMMAND,
]  # fmt: skip


async def test_the_fields_of_a_get_more_are_checked_as_by_mongos(pair: Pair) -> None:
    """The cursor stays open: the getMore after it is answered too."""
    different: list[Any] = []
    async with both(pair) as clients:
        for field in OF_GET_MORE:
            answers = []
            for client in clients:
                opened = await client.command("db", WATCH)
                number = opened["cursor"]["id"]
                more = {"getMore": number, "collection": "c", "maxTimeMS": 1}
                replies = [await client.command("db", {**more, **field})]
                replies.append(await client.command("db", more))
                answer = [[each.get(name) for name in TOLD] for each in replies]
                answers.append(str(answer).replace(str(number), "…"))
            if answers[1] != answers[0]:
                different.append((field, *answers))
    assert different == []


async def test_a_read_after_a_time_is_refused_only_before_that_time(pair: Pair) -> None:
    async with both(pair) as (mongos, router):
        for ahead in (Timestamp(2**32 - 1, 1), Timestamp(2**32 - 1, 2)):
            command = {**WATCH, "readConcern": {"afterClusterTime": ahead}}
            answers = [await each.command("db", command) for each in (mongos, router)]
            for answer in answers:
                assert (answer["code"], answer["codeName"]) == (72, "InvalidOptions")
            told, ours = (each["errmsg"].rpartition("current clusterTime: ") for each in answers)
            assert ours[0] == told[0]
        # A time that mongos has told and the router has not read yet.
        for number in range(20):
            write = {"insert": "causal", "documents": [{"_id": number}]}
            written = await mongos.command("db", write)
            read = {"level": "majority", "afterClusterTime": written["operationTime"]}
            assert (await router.command("db", {**WATCH, "readConcern": read}))["ok"] == 1


async def test_a_read_preference_that_no_member_has_is_refused_as_soon(pair: Pair) -> None:
    """The replies' time limit is shorter than that of openings for which a member may be away."""
    asked = []
    async with both(pair) as now, both(pair) as then, asyncio.TaskGroup() as group:
        for clients, start in ((now, {}), (then, {"startAtOperationTime": PAST})):
            command = {**WATCH, "pipeline": [{"$changeStream": start}]}
            command["$readPreference"] = {"mode": "secondary"}
            asked += [group.create_task(each.command("db", command)) for each in clients]
    for each in asked:
        reply = each.result()
        assert (reply["code"], reply["codeName"]) == (133, "FailedToSatisfyReadPreference")
        assert reply["errorLabels"] == ["ResumableChangeStreamError"]


@pytest.mark.parametrize("ending", ["endSessions", "killSessions"])
async def test_ended_sessions_leave_a_get_more_that_waits(pair: Pair, ending: str) -> None:
    lsid = {"id": Binary(bytes(15) + bytes([len(ending)]), UUID_SUBTYPE)}
    answers = []
    async with both(pair) as waiting, both(pair) as others:
        for client, other in zip(waiting, others, strict=True):
            opened = await client.command("db", {**WATCH, "lsid": lsid})
            more = {"getMore": opened["cursor"]["id"], "collection": "c", "lsid": lsid}
            async with asyncio.TaskGroup() as group:
                got = await _waiting(group, client, other, {**more, "maxTimeMS": 2000})
                await other.command("admin", {ending: [lsid]})
            after = await client.command("db", {**more, "maxTimeMS": 1})
            answers.append([(each["ok"], each.get("code")) for each in (got.result(), after)])
    assert answers[1] == answers[0]


async def _waiting(
    group: asyncio.TaskGroup, client: RawClient, other: RawClient, more: dict[str, Any]
) -> asyncio.Task[Any]:
    """Return a getMore of ``client`` once its cursor is in use, as ``other`` sees it.

    ``other`` asks outside the cursor's session, which is refused but holds the cursor for a
    moment. A getMore that meets that moment is sent again.
    """
    elsewhere = {name: value for name, value in more.items() if name != "lsid"}
    async with asyncio.timeout(PATIENCE):
        while True:
            got = group.create_task(client.command("db", more))
            while not got.done():
                if (await other.command("db", elsewhere)).get("code") == ErrorCode.CursorInUse:
                    return got


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b"maxTimeMS\0", b"maxTimeMT\0"),
        (b"pipeline\0", b"pipelinf\0"),
        (b"batchSize\0", b"batchSizf\0"),
        (b"fullDocument\0", b"fullDocumenu\0"),
    ],
)
async def test_repeated_fields_get_the_same_answers(
    pair: Pair, first: bytes, second: bytes
) -> None:
    command = bson.encode(
        {
            "aggregate": "c",
            "pipeline": [{"$changeStream": {"fullDocument": "default", "fullDocumenu": "default"}}],
            "pipelinf": [],
            "cursor": {"batchSize": 1, "batchSizf": 2},
            "maxTimeMS": 1000,
            "maxTimeMT": 2000,
            "$db": "db",
        }
    )
    document = bson.decode(command)
    for name in ("maxTimeMT", "pipelinf", "batchSizf", "fullDocumenu"):
        if name.encode() + b"\0" != second:
            document = _without(document, name)
    body = bson.encode(document).replace(second, first)
    async with both(pair) as (mongos, router):
        answers = []
        for client in (mongos, router):
            client.send_bytes(build_msg(body, request_id=7))
            answers.append(compared(await client.receive()))
    assert answers[1] == answers[0]
    assert answers[0]["code"] == 40413


def _without(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {each: _without(inner, name) for each, inner in value.items() if each != name}
    return [_without(each, name) for each in value] if isinstance(value, list) else value


DRIVER: dict[str, Any] = {"driver": {"name": "x", "version": "1"}, "os": {"type": "x"}}
CLIENTS: list[Any] = [
    DRIVER,
    5,
    {},
    {**DRIVER, "driver": {"name": "x" * 600, "version": "1"}},
    {**DRIVER, "driver": 5},
    {**DRIVER, "driver": {"name": 5, "version": "1"}},
    {**DRIVER, "driver": {"name": "x"}},
    {"driver": DRIVER["driver"]},
    {**DRIVER, "os": {}},
    {**DRIVER, "os": {"type": 5}},
    {**DRIVER, "application": 5},
    {**DRIVER, "application": {}},
    {**DRIVER, "application": {"name": 5}},
    {**DRIVER, "application": {"name": "y" * 128}},
    {**DRIVER, "application": {"name": "y" * 129}},
    {**DRIVER, "other": 5},
]


GET_PARAMETERS: list[dict[str, Any]] = [
    {"getParameter": 1, "featureFlagChangeStreamPreAndPostImages": 1},
    {"getParameter": 1, "nosuch": 1},
    {"getParameter": 1},
    {"getParameter": 1, "enableTestCommands": 1, "nosuch": 1, "logLevel": 1},
    {"getParameter": 1, "featureCompatibilityVersion": 1},
    {"getParameter": {"showDetails": True}, "logLevel": 1},
    {"getParameter": {"showDetails": 5}, "logLevel": 1},
    {"getParameter": {"allParameters": "x"}},
    {"getParameter": {"x": 1}, "logLevel": 1},
    {"getParameter": "x", "logLevel": 1},
    {"getParameter": 1, "authenticationMechanisms": 1, "transactionLifetimeLimitSeconds": 1},
]


FAIL_POINTS = [
    ("admin", {"configureFailPoint": "nosuch", "mode": "off"}),
    ("admin", {"configureFailPoint": "failCommand", "mode": "off"}),
    ("admin", {"configureFailPoint": "hangBeforeCheckingMongosShutdownInterrupt", "mode": "off"}),
    ("db", {"configureFailPoint": "failCommand", "mode": "off"}),
]


LOG_LEVELS: list[dict[str, Any]] = [
    {"logLevel": -1},
    {"logLevel": "1"},
    {"logComponentVerbosity": 1},
    {"logComponentVerbosity": {"verbosity": "x"}},
    {"logComponentVerbosity": {"nosuch": {"verbosity": 1}}},
]
OPENINGS: list[dict[str, Any]] = [
    *({**WATCH, "pipeline": [*WATCH["pipeline"], stage]} for stage in STAGES),
    *({**WATCH, "pipeline": [{"$changeStream": options}]} for options in OPTIONS),
    *({**WATCH, **field} for field in FIELDS),
]
OTHER_COMMANDS: list[dict[str, Any]] = [
    *({"killCursors": "c", **each} for each in ({}, {"cursors": 5}, {"cursors": ["x"]})),
    {"endSessions": 5},
    *({name: 1, **STRICT} for name in ("connectionStatus", "serverStatus")),
    *({"ping": 1, "apiVersion": each} for each in ("2", "x", 1, True)),
    {"ping": 1, "apiStrict": True},
    # The message has the name of the value's type.
    *(
        {"ping": 1, **STRICT, "apiStrict": each}
        for each in (
            5, 2**40, Int64(5), 1.5, "x", {}, [], b"", bson.ObjectId(), PAST, bson.Regex("a"),
            bson.MaxKey(), Decimal128("1"), None, bson.MinKey(), bson.DatetimeMS(0),
            bson.Code("f"), bson.Code("f", {}),
        )
    ),
    {"hello": 1, "maxAwaitTimeMS": 5},
    {"hello": 1, "maxAwaitTimeMS": 5, "topologyVersion": 5},
    {"hello": 1, "topologyVersion": {"processId": bson.ObjectId(), "counter": Int64(0)}},
    {
        "hello": 1,
        "topologyVersion": {"processId": bson.ObjectId(), "counter": Int64(-1)},
        "maxAwaitTimeMS": 5,
    },
]  # fmt: skip
COMMANDS_BY_SUBJECT: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "client times": [
        *(("admin", {"ping": 1, "$clusterTime": time}) for time in CLIENT_TIMES),
        # Other checks come first.
        ("db", {"ping": 1, "apiVersion": "2", "$clusterTime": 5}),
        ("db", {"getParameter": 1, "x": 1, "$clusterTime": 5}),
        ("db", {"nosuch": 1, "$clusterTime": 5}),
    ],
    "fields": [
        *(("db", {**WATCH, **field}) for field in OF_ANY_COMMAND),
        # mongos refuses the level snapshot for a ping.
        *(("admin", {"ping": 1, **each}) for each in OF_ANY_COMMAND if "snapshot" not in str(each)),
    ],
    "openings": [("db", command) for command in OPENINGS],
    "openings, strict": [("db", {**STRICT, **command}) for command in OPENINGS],
    "parameters": [("admin", command) for command in GET_PARAMETERS],
    "fail points": FAIL_POINTS,
    "other commands": [("admin", command) for command in OTHER_COMMANDS],
}


@pytest.mark.parametrize("subject", COMMANDS_BY_SUBJECT)
async def test_commands_get_the_same_answers(pair: Pair, subject: str) -> None:
    different: list[Any] = []
    for database, command in COMMANDS_BY_SUBJECT[subject]:
        async with both(pair) as clients:
            mongos, router = [compared(await each.command(database, command)) for each in clients]
        if router != mongos:
            different.append((command, mongos, router))
    assert different == []


SAME_CODES: list[dict[str, Any]] = [
    *({"setParameter": 1, **level} for level in LOG_LEVELS),
    *({"endSessions": [session]} for session in (5, {"id": 5})),
    *({"getLog": name} for name in (1, 2.0, True, None, {}, [], "x", "global", "*")),
]


@pytest.mark.parametrize(
    ("commands", "told"),
    [(SAME_CODES, TOLD[:3]), ([{"hello": 1, "client": each} for each in CLIENTS], TOLD)],
    ids=["codes", "client metadata"],
)
async def test_commands_get_the_same_errors(
    pair: Pair, commands: list[dict[str, Any]], told: tuple[str, ...]
) -> None:
    for command in commands:
        async with both(pair) as clients:
            replies = [await each.command("admin", command) for each in clients]
        mongos, router = ([each.get(name) for name in told] for each in replies)
        assert router == mongos, command


@pytest.mark.parametrize("extra", [0, 1])
async def test_large_bodies_get_the_same_answers(pair: Pair, extra: int) -> None:
    empty = len(bson.encode({"insert": "c", "comment": "", "$db": "db"}))
    pad = "x" * (16 * 1024 * 1024 + 16 * 1024 + extra - empty)
    answer = await same(pair, "db", {"insert": "c", "comment": pad})
    assert (answer["code"] == 10334) == bool(extra)


async def test_large_bodies_of_the_router_s_commands_are_refused(pair: Pair) -> None:
    pad = "x" * (16 * 1024 * 1024 + 16 * 1024)
    for command in ({"ping": 1}, WATCH):
        answer = await same(pair, "db", {**command, "comment": pad})
        assert answer["code"] == 10334


async def test_document_sequences_of_the_router_s_commands_get_the_same_answers(pair: Pair) -> None:
    command = {"aggregate": "c", "cursor": {}}
    await same(pair, "db", command, sequences={"pipeline": [{"$changeStream": {}}]})
    await same(pair, "db", {"killCursors": "c"}, sequences={"cursors": [{"a": 1}]})
    await same(pair, "admin", {"ping": 1}, sequences={"documents": [{"a": 1}]})


# Without their fields some commands are refused before their API version is looked at.
WELL_FORMED: dict[str, dict[str, Any]] = {
    "aggregate": {"aggregate": 1, "pipeline": [{"$documents": []}], "cursor": {}},
    "configureFailPoint": {"configureFailPoint": "noSuchFailPoint", "mode": "off"},
    "getMore": {"getMore": Int64(1), "collection": "c"},
    "killCursors": {"killCursors": "c", "cursors": [Int64(1)]},
    "killSessions": {"killSessions": []},
}
API: dict[str, dict[str, Any]] = {
    "none": {},
    "version": {"apiVersion": "1"},
    "strict": STRICT,
    "deprecation": {"apiVersion": "1", "apiDeprecationErrors": True},
    "not_strict": {"apiVersion": "1", "apiStrict": False},
}
NOT_OF_MONGOS = {"mergerouterReportJob"}
OWN = sorted(
    name for name in COMMANDS.keys() - NOT_OF_MONGOS if name[0] != "_" and name != "shutdown"
)


@pytest.mark.parametrize("api", API)
async def test_commands_follow_the_api_version(pair: Pair, api: str) -> None:
    """Every command of mongos that the router answers; shutdown would end the mongos."""
    different: dict[str, tuple[Any, ...]] = {}
    for name in OWN:
        command = {**WELL_FORMED.get(name, {name: 1}), **API[api]}
        answers = []
        async with both(pair) as clients:
            for client in clients:
                reply = await client.command("admin", command)
                answers.append((reply["ok"], reply.get("code"), reply.get("codeName")))
        if answers[0] != answers[1]:
            different[name] = tuple(answers)
    assert different == {}
