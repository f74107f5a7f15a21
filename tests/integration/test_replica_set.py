"""A router in front of a replica set: clients get what they get from the set itself."""

import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pymongo
import pytest
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.errors import AutoReconnect, DuplicateKeyError, OperationFailure

from shard_client.errors import ErrorCode
from spark_sink.options.scope import Scope
from spark_sink.options.snapshot_options import SnapshotOptions
from spark_sink.options.stream_options import parse_options
from spark_sink.snapshot.chunk_planner import ChunkPlanner
from spark_sink.stream.router_client import RouterClient
from tests.conformance.streams import next_tick, now
from tests.harness.admin import get
from tests.harness.certificates import Authority
from tests.harness.clusters import Client, start_real_set
from tests.harness.feed_client import feed
from tests.harness.replica_sets import ReplicaSet
from tests.harness.routers import RouterProcess
from tests.harness.server_settings import ServerSettings, ServerTls, write_key_file
from tests.harness.until import PATIENCE, wait_for

RAW: CodecOptions[Any] = CodecOptions(document_class=RawBSONDocument)


class Fronted(NamedTuple):
    """A replica set, the router in front of it, and a client of each."""

    servers: ReplicaSet
    router: RouterProcess
    behind: Client
    through: Client


@pytest.fixture(scope="module")
def fronted() -> Iterator[Fronted]:
    with start_real_set("rs0", members=3) as servers:
        hosts = servers.host_string.partition("/")[2]
        with RouterProcess(["--replicaSet", servers.host_string, "--port", "0"]) as router:
            behind: Client = pymongo.MongoClient(f"mongodb://{hosts}/?replicaSet=rs0")
            through: Client = pymongo.MongoClient(router.uri)
            with behind, through:
                yield Fronted(servers, router, behind, through)


def write_everything(client: Client, database: str) -> None:
    """Write events of all kinds, which in the end invalidate streams of collection and database."""
    collection = client[database].c
    collection.insert_many({"_id": number, "n": 0} for number in range(20))
    with client.start_session() as session:
        for _ in range(2):
            with session.start_transaction():
                collection.update_many({}, {"$inc": {"n": 1}}, session=session)
                client[database].d.insert_one({}, session=session)
        with session.start_transaction():
            collection.insert_one({"_id": "aborted"}, session=session)
            session.abort_transaction()
    collection.replace_one({"_id": 1}, {"new": True})
    collection.delete_one({"_id": 2})
    collection.create_index("n")
    client[database].create_collection("view", viewOn="c", pipeline=[{"$match": {"n": 1}}])
    collection.drop()
    client.drop_database(database)


def read(stream: Any, most: int | None = None) -> list[bytes]:
    """Return what a stream gives up to ``most`` events, or to its end, event by event."""
    events: list[bytes] = []
    while stream.alive and (most is None or len(events) < most):
        event = stream.try_next()
        if event is not None:
            events.append(event.raw)
    return events


WATCHES: list[dict[str, Any]] = [
    {},
    {"pipeline": [{"$match": {"operationType": {"$ne": "insert"}}}]},
    {"pipeline": [{"$match": {"fullDocument.n": 0}}, {"$project": {"documentKey": 1}}]},
    {"full_document": "updateLookup"},
    {"full_document": "updateLookup", "pipeline": [{"$match": {"fullDocument": None}}]},
    {"show_expanded_events": True},
]


@pytest.mark.parametrize("scope", ["collection", "database"])
@pytest.mark.parametrize("watch", WATCHES, ids=str)
def test_events_and_tokens_are_those_of_the_set(
    fronted: Fronted, watch: dict[str, Any], scope: str
) -> None:
    database = "events"

    def watched(client: Client, **options: Any) -> Any:
        source = client.get_database(database, RAW)
        target = source if scope == "database" else source.c
        return target.watch(**options, max_await_time_ms=100)

    options = {**watch, "start_at_operation_time": next_tick(now(fronted.behind))}
    write_everything(fronted.through, database)
    streams = [watched(each, **options) for each in (fronted.behind, fronted.through)]
    expected = read(streams[0])
    assert len(expected) > 2
    assert read(streams[1]) == expected
    assert streams[1].resume_token == streams[0].resume_token
    # Each token is one of the other's, too.
    token = RawBSONDocument(expected[1])["_id"]
    for each in (fronted.behind, fronted.through):
        with watched(each, **watch, resume_after=token) as resumed:
            assert read(resumed) == expected[2:]


def test_many_watchers_share_one_cursor_which_needs_no_no_op_writes(fronted: Fronted) -> None:
    through = fronted.through
    streams = [through.shared.c.watch(max_await_time_ms=100) for _ in range(10)]
    through.shared.c.insert_many({"_id": number} for number in range(50))
    for stream in streams:
        assert [stream.next()["documentKey"]["_id"] for _ in range(50)] == list(range(50))
    status = through.admin.command("serverStatus")["mergerouter"]
    [shared] = [each for each in status["streams"] if each["namespace"] == "shared.c"]
    assert len(shared["cursorIds"]) == len(streams)
    assert [each["target"] for each in shared["remotes"]] == ["rs0"]
    assert status["members"]["rs0"]["noopCommands"] == 0
    for stream in streams:
        stream.close()


def test_errors_are_the_set_s_own(fronted: Fronted) -> None:
    told = []
    for client in (fronted.behind, fronted.through):
        with pytest.raises(OperationFailure) as caught, client.x.c.watch([{"$nope": 1}]) as stream:
            stream.next()
        told.append((caught.value.code, caught.value.details.get("errmsg")))  # type: ignore[union-attr]
    assert told[1] == told[0]
    with pytest.raises(OperationFailure) as caught:
        fronted.through.admin.command("shardCollection", "x.c", key={"_id": 1})
    assert caught.value.code == ErrorCode.CommandNotFound


def test_the_set_is_the_only_shard(fronted: Fronted) -> None:
    [shard] = fronted.through.admin.command("listShards")["shards"]
    assert (shard["_id"], shard["host"]) == ("rs0", fronted.servers.host_string)
    pipeline: list[Any] = [{"$changeStream": {}}]
    asked = {"aggregate": "c", "pipeline": pipeline, "cursor": {}}
    for name, code in (("rs0", None), ("rs1", ErrorCode.ShardNotFound)):
        command = {**asked, "$_passthroughToShard": {"shard": name}}
        assert fronted.through.x.command(command, check=False).get("code") == code


@pytest.mark.parametrize("mode", ["secondary", "nearest", "primaryPreferred"])
def test_reads_and_streams_of_any_read_preference_are_answered(fronted: Fronted, mode: str) -> None:
    fronted.through.preferred.c.insert_one({"mode": mode})
    chosen: Client = pymongo.MongoClient(fronted.router.uri, readPreference=mode)
    with chosen, chosen.preferred.c.watch() as stream:
        assert chosen.preferred.c.find_one({"mode": mode})
        fronted.through.preferred.c.insert_one({"written": mode})
        assert stream.next()["fullDocument"]["written"] == mode
        [read_from] = [
            each["remotes"][0]["address"]
            for each in chosen.admin.command("serverStatus")["mergerouter"]["streams"]
            if each["namespace"] == "preferred.c"
        ]
        if mode == "secondary":
            assert read_from != fronted.servers.members[fronted.servers.wait_primary()]


def _until_done(write: Callable[[], object]) -> None:
    """Write until an attempt succeeds, or finds what an earlier one has inserted."""
    while True:
        with suppress(AutoReconnect):
            with suppress(DuplicateKeyError):
                write()
            return


def test_writes_and_streams_go_on_with_another_primary(fronted: Fronted) -> None:
    through = fronted.through
    through.moved.c.insert_one({})
    with through.moved.c.watch(full_document="updateLookup") as stream:
        done = threading.Event()
        written: list[int] = []

        def write() -> None:
            own: Client = pymongo.MongoClient(fronted.router.uri)
            with own:
                for number in range(100_000):
                    if done.is_set():
                        return
                    # A driver retries once; an election may refuse both attempts.
                    _until_done(partial(own.moved.c.insert_one, {"_id": number, "x": 0}))
                    change = {"$set": {"x": 1}}
                    _until_done(partial(own.moved.c.update_one, {"_id": number}, change))
                    written.append(number)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            wait_for(lambda: written, "writes")
            former = fronted.servers.wait_primary()
            fronted.servers.step_down(5)
            fronted.servers.wait_primary(other_than=former)
            before = len(written)
            wait_for(lambda: len(written) > before + 5, "writes to the next primary")
        finally:
            done.set()
            writer.join(PATIENCE)
        found: list[int] = []
        while len(found) < len(written):
            event = stream.next()
            if event["operationType"] == "update":
                assert event["fullDocument"]["x"] == 1
                found.append(event["documentKey"]["_id"])
        assert found == written


def test_check_config_checks_the_set(fronted: Fronted, tmp_path: Path) -> None:
    config = tmp_path / "any-free-port.yaml"
    config.write_text("net: {port: 0}")
    router = [sys.executable, "-m", "router.cli"]
    command = [*router, "check-config", "--config", str(config), "--replicaSet"]
    for hosts, status, said in (
        (fronted.servers.host_string, 0, "ok   replica set"),
        (fronted.servers.host_string.replace("rs0/", "rs1/"), 1, "FAIL replica set: does not"),
    ):
        done = subprocess.run([*command, hosts], capture_output=True, text=True, check=False)
        assert said in done.stdout
        assert done.returncode == status


def source_reads(uri: str, database: str) -> None:
    """Check that the Spark source finds all that it asks the set for, with the right to read."""
    with closing(RouterClient(parse_options({"uri": uri, "database": database}))) as source:
        source.require_stream()
        source.present()
        assert source.shards() is None
        planner = ChunkPlanner(source.mongo, Scope(database), SnapshotOptions(tasks=2))
        assert planner.next_batch(planner.begin(source.present())).ended


async def test_by_tls_clients_feed_and_page_know_the_set_s_users(tmp_path: Path) -> None:
    key_file, authority = write_key_file(tmp_path), Authority(tmp_path)
    tls = ServerTls(authority.issue("server"), authority.file)
    settings = ServerSettings(noop_interval=1, key_file=key_file, tls=tls)
    with start_real_set("rs0", settings=settings) as servers:
        itself: Client = pymongo.MongoClient(servers.uri(servers.wait_primary()))
        itself.admin.command("createUser", "ann", pwd="x", roles=["readWriteAnyDatabase"])
        itself.admin.command("createUser", "bob", pwd="x", roles=[{"role": "read", "db": "b"}])
        flags = ["--replicaSet", servers.host_string, "--port", "0", "--keyFile", str(key_file)]
        flags += ["--workers", "2", "--setParameter", "userCacheInvalidationIntervalSecs=1"]
        flags += [
            "--feed-port",
            "0",
            "--admin-port",
            "0",
            "--tlsAllowConnectionsWithoutCertificates",
        ]
        tls_flags = authority.router_flags(authority.issue("router"))
        flags += [f"--{name}={value}" for name, value in tls_flags.items()]
        context = ssl.create_default_context(cafile=authority.file)
        source_reads(settings.client_uri(servers.host_string.partition("/")[2], "bob:x"), "b")
        with RouterProcess(flags) as router:
            secured = {"tls": True, "tlsCAFile": str(authority.file), "password": "x"}
            ann: Client = pymongo.MongoClient(router.uri, username="ann", **secured)
            bob: Client = pymongo.MongoClient(router.uri, username="bob", **secured)
            async with feed(router.feed_port, context) as connected:
                assert (await connected.log_in("ann", "x"))["login"]["done"]
                connected.send({"database": "fed"})
                ann.fed.c.insert_one({"_id": 1})
                event = await connected.receive()
            assert event is not None
            assert event["documentKey"] == {"_id": 1}
            page = get(router.admin_port, "/status.json", tls=context)
            assert page.status == 200
            assert "rs0" in page.text
            with ann.a.c.watch(full_document="updateLookup") as stream, bob.b.watch() as ended:
                ann.a.c.insert_one({"_id": 1, "x": 0})
                ann.a.c.update_one({"_id": 1}, {"$set": {"x": 1}})
                assert [next(stream)["fullDocument"]["x"] for _ in range(2)] == [0, 1]
                with pytest.raises(OperationFailure, match="not authorized on a"):
                    bob.a.watch()
                itself.admin.command("dropUser", "bob")
                with pytest.raises(OperationFailure) as caught:
                    read(ended)
            assert caught.value.code == ErrorCode.Unauthorized
            assert not [
                line for line in router.logs() if line.get("c") == "ACCESS" and line["s"] == "W"
            ]
            for each in (ann, bob, itself):
                each.close()
