"""A view that has failed leaves nothing in the fan-out, whenever its reader closes it."""

from itertools import count
from typing import Any

from router.filters import fields
from router.filters.stream_filter import EVERYTHING, compile_filter
from router.stream.fan_out import FanOut
from router.stream.views import Namespace
from shard_client.bson.resume_token import first_key
from shard_client.remote_cursor.cursor_reply import token_of
from tests.doubles.scripted_streams import PrivateStream, batch, hwm
from tests.unit.router.made_tokens import data_of, event
from tests.unit.router.stream.streams_by_hand import CONFIG, START, A, opened

NAME = Namespace(b"db", b"coll")


def arrive(stream: PrivateStream, number: int, **fields: Any) -> None:
    namespace = {"db": "db", "coll": "coll"}
    document = {"_id": number, **fields}
    found = [event(data_of(11, 1, inc=number), fullDocument=document, ns=namespace)]
    stream.batch_arrived(A, batch(found, token_of(found[-1][1])))
    stream.batch_arrived(CONFIG, batch([], hwm(20)))
    while stream.release():
        pass


def test_a_failed_view_whose_scan_another_has_joined_is_forgotten() -> None:
    stream = opened(shards=1)
    stream.keep_bytes = 1 << 30
    fan_out = FanOut(stream, 1 << 30)
    greedy = compile_filter([{"$match": {"fullDocument.many": {"$gt": 5}}}])

    late = fan_out.open(EVERYTHING, first_key(START), Namespace(b"other", b"coll"))
    for number in range(1, 40):
        arrive(stream, number)
    # A client begins at the end, while the others are far behind.
    failing = fan_out.open(greedy, data_of(11, 1, inc=39).encode(), NAME)
    arrive(stream, 40, many=[1] * (fields.MOST_WORK + 1))
    while fan_out.behind:
        fan_out.step(count().__next__, 1)
    assert failing.failure is not None
    assert late.failure is None
    for view in (failing, late):
        fan_out.close(view)
    shown = fan_out.describe()
    assert (shown["readers"], shown["filters"], shown["namespaces"]) == (0, 0, 0)
    arrive(stream, 41)
    assert not fan_out.behind, "nobody reads"
