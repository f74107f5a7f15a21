"""Batches with snapshots on demand, planned, killed, repeated and folded without Spark's JVM."""

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import bson
import pandas
import pytest
from bson.timestamp import Timestamp

from spark_sink.errors import StreamError
from spark_sink.events.positions import AtTime, Token, position_document
from spark_sink.options.stream_options import parse_options
from spark_sink.snapshot.signal import digest
from spark_sink.snapshot.signal_channels import SignalCollection, send
from spark_sink.stream.router_client import RouterClient
from tests.doubles.event_history import history_lost
from tests.harness.until import wait_for
from tests.spark.batches import TableQuery
from tests.spark.conftest import DEPLOYMENTS, Shop
from tests.spark.tables import change_at_random, collections_of, damage

pytestmark = [pytest.mark.xdist_group("spark_cluster"), pytest.mark.timeout(600)]


def query_of(shop: Shop, folder: Path, **options: str) -> TableQuery:
    """A query with signals from the folder."""
    sizes = {"snapshotChunkRows": "20", "snapshotTasks": "2"}
    parsed = parse_options(shop.options(signalFolder=folder, **sizes, **options))
    return TableQuery(parsed, str(folder / "table"), begun=shop.created.time)


def key_of(number: int) -> str:
    return f'{{"$numberInt": "{number}"}}'


def damaged(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Let the rows lack a document of items, and have one too many."""
    items = rows["collection"] == "items"
    ghost = rows[items].head(1).copy()
    ghost["key"], ghost["document"] = key_of(5000), bson.encode({"_id": 5000})
    return pandas.concat([rows[~(items & (rows["key"] == key_of(30)))], ghost])


@pytest.mark.parametrize("seed", range(2))
def test_a_table_equals_its_collections_after_kills_of_the_query(
    shop: Shop, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    database = shop.client[shop.database]
    shop.insert(120)
    database.items.insert_many([{"_id": number} for number in range(50)])
    query = query_of(shop, tmp_path, snapshotMode="initial")
    try:
        while query.operations.count("snapshotEnd") < 1:
            query.batch(killed=chance.random() < 0.3)
        # Differences that no event corrects: a lost document and an extra one.
        damage(str(tmp_path / "table"), damaged)
        assert {("items", key_of(n)) in query.table for n in (30, 5000)} == {False, True}
        kind = chance.choice(("incremental", "blocking"))
        wanted = [f"{shop.database}.{name}" for name in ("items", "orders")]
        send(
            str(tmp_path),
            {"type": "execute-snapshot", "data": {"type": kind, "data-collections": wanted}},
        )
        while query.operations.count("snapshotEnd") < 2:
            for _ in range(chance.randrange(3)):
                change_at_random(shop, chance.randrange(10**6), 10)
            query.batch(killed=chance.random() < 0.5)
            if chance.random() < 0.2:
                query.kill()
        database.items.insert_one({"_id": 999})
        while ("items", key_of(999)) not in query.table:
            query.batch()
        assert query.table == collections_of(shop)
        assert "requests" not in query.offset.get("snapshots", {})
    finally:
        query.reader.stop()


def test_signals_that_never_stop_do_not_keep_a_query_up_to_the_present(
    shop: Shop, tmp_path: Path
) -> None:
    name = f"{shop.database}.signals"
    query = query_of(shop, tmp_path, signalCollection=name, **shop.begin)
    numbers = itertools.count()
    signals = shop.client[shop.database].signals
    sent = signals.watch(start_at_operation_time=shop.created)

    def batches() -> int:
        """Send a signal before each batch, to a query with the trigger availableNow."""
        query.kill()
        for done in range(20):
            number = next(numbers)
            signals.insert_one({"_id": number, "type": "log", "data": {"message": "x"}})
            while sent.next()["documentKey"]["_id"] != number:  # streams have it
                pass
            if not done:
                query.reader.prepareForTriggerAvailableNow()
            before = query.offset
            if query.batch() == before:
                return done
        raise AssertionError("it does not end")

    shop.insert(5)
    assert batches() > 0
    first = len(query.notified)
    assert first > 0
    assert batches() > 0  # the next start has the signals that were sent after the end
    assert len(query.notified) > first
    query.reader.stop()
    sent.close()


def test_signals_whose_position_the_oplogs_have_lost_do_not_end_the_query(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a `job seek` of before, or with a collection that was taken out and added again."""
    name = f"{shop.database}.signals"
    query = query_of(shop, tmp_path, signalCollection=name, **shop.begin)
    signals = shop.client[shop.database].signals

    def log(identifier: str) -> None:
        signals.insert_one({"_id": identifier, "type": "log", "data": {"message": "x"}})
        told = (identifier, "Signal", "LOGGED")
        wait_for(lambda: query.batch() is not None and told in query.notified, identifier)

    log("first")
    rolled_over = AtTime(Timestamp(1, 1))
    query.offset["snapshots"]["signalPosition"] = position_document(rolled_over)

    def watch(client: RouterClient, *place: Any, **given: Any) -> Any:
        if place[-1] == rolled_over:
            raise history_lost()
        return watch_inserts(client, *place, **given)

    watch_inserts = RouterClient.watch_inserts
    monkeypatch.setattr(RouterClient, "watch_inserts", watch)
    query.kill()
    log("second")
    assert f"position in the collection of signals {name}" in capsys.readouterr().err
    log("third")
    lost = [each for each, *kind in query.notified if kind == ["Signal", "SKIPPED"]]
    assert [each.partition("-")[0] for each in lost] == ["signal"]
    assert capsys.readouterr().err == ""

    # Without the collection, its position is not kept.
    with_signals, query.options = query.options, replace(query.options, signal_collection=None)
    query.kill()
    shop.insert(1)
    assert "signalPosition" not in query.batch()["snapshots"]
    query.options = with_signals
    query.kill()
    log("fourth")
    query.reader.stop()


def test_all_waiting_signals_are_received_before_the_end_of_what_is_available(
    shop: Shop, tmp_path: Path
) -> None:
    """A batch receives two of a channel."""
    ops = shop.client[f"{shop.database}_ops"].signals
    query = query_of(shop, tmp_path, signalCollection=ops.full_name)
    try:
        query.batch()
        for number in range(5):
            send(str(tmp_path), {"type": "log", "data": {"message": f"file {number}"}})
        hello = {"type": "log", "data": {"message": "hello"}}
        ops.insert_many([{"_id": number, **hello} for number in range(5)])
        query.reader.prepareForTriggerAvailableNow()
        before = None
        while query.offset != before:
            before = query.offset
            assert len(query.batch()["snapshots"].get("batch", {}).get("notifications", ())) <= 5
        assert [kind for _, _, kind in query.notified].count("LOGGED") == 10
    finally:
        query.reader.stop()


def test_a_snapshot_whose_filter_fails_is_stopped_by_a_signal(shop: Shop, tmp_path: Path) -> None:
    query = query_of(shop, tmp_path)
    query.batch()
    shop.insert(5)
    condition = {"$expr": {"$gt": [{"$divide": [1, "$_id"]}, 0]}}  # there is an _id 0
    data = {"data-collections": [shop.orders.full_name], "additional-condition": condition}
    send(str(tmp_path), {"id": "odd", "type": "execute-snapshot", "data": data})
    with pytest.raises(StreamError, match="the signal odd: send stop-snapshot"):
        wait_for(lambda: query.batch() is None, "the failure")
    send(str(tmp_path), {"type": "stop-snapshot"})
    query.kill()
    query.batch(again=query.planned)
    assert "read" not in query.operations
    wait_for(lambda: query.batch() and "ABORTED" in [e[2] for e in query.notified], "the stop")
    query.reader.stop()


@pytest.mark.xdist_group("spark_cluster")
@pytest.mark.parametrize("shop", DEPLOYMENTS, indirect=True)
def test_signals_in_a_collection(shop: Shop) -> None:
    signals = shop.client[shop.database].signals
    router = RouterClient(parse_options(shop.options()))
    opened = []

    def watch(position: Any) -> Any:
        opened.append(position)
        return router.watch_inserts(shop.database, "signals", position, max_await=0.001)

    def channel() -> SignalCollection:
        return SignalCollection(watch, lambda: router.clocks().cluster_time)

    try:
        signals.insert_one({"_id": "before", "type": "stop-snapshot"})
        begin = AtTime(Timestamp(shop.now().time, shop.now().inc + 1))
        first = signals.insert_one({"type": "stop-snapshot"}).inserted_id
        signals.update_one({"_id": first}, {"$set": {"x": 1}})
        signals.insert_one({"_id": {"n": 1}, "type": "stop-snapshot"})
        collection = channel()
        found, reached = collection.receive(begin)
        assert [each.id for each in found] == [str(first), '{"n": 1}']
        assert isinstance(reached, Token)
        # A batch that has written the position goes on from it, and so does one that has not.
        assert collection.receive(reached)[0] == []
        assert collection.receive(reached)[0] == []
        assert len(opened) == 1
        # After a restart, from the offset.
        signals.insert_one({"_id": "later"})
        handled = {digest(str(first)), digest('{"n": 1}')}
        again, _ = channel().receive(reached, handled)
        assert [each.id for each in again] == ["later"]
        # A collection that is dropped and filled anew.
        signals.drop()
        signals.insert_one({"_id": "anew"})
        anew = channel().receive(reached, handled)[0]
        assert [each.id for each in anew] == ["later", "anew"]
        # Signals of one transaction have one time: those that are handled hide no others.
        with shop.client.start_session() as session, session.start_transaction():
            signals.insert_many([{"_id": number} for number in range(5)], session=session)
        for _ in range(4):  # each after a restart
            last, reached = channel().receive(reached, handled)
            handled |= {digest(each.id) for each in last}
        assert handled >= {digest(str(number)) for number in range(5)}
    finally:
        router.close()
