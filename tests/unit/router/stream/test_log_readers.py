"""Many readers of one merged stream: each gets the same batches as from its own stream."""

from dataclasses import dataclass, field
from itertools import count
from random import Random

import bson
from bson.timestamp import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from router.request.resume_point import starting_point
from router.request.stream_request import StreamRequest, parse_request
from router.stream.log_reader import Batch, LogReader
from router.stream.merged_stream import MergedStream
from router.stream.remote_queue import Action, CloseRemote, OpenRemote
from router.stream.views import View
from router.stream_settings import BlockSizes
from shard_client.bson.resume_token import cluster_time_of
from shard_client.errors import CommandError
from shard_client.remote_cursor.cursor_reply import CursorBatch, token_data, token_of
from tests.doubles.scripted_streams import Driver, Event, PrivateStream, Script, hwm
from tests.unit.router.made_tokens import data_of, event

START = Timestamp(10, 1)
END = hwm(1000)
SHARDS = ("shard0", "shard1", "shard2")


def request(**options) -> StreamRequest:
    command = {"aggregate": "c", "pipeline": [{"$changeStream": options}], "cursor": {}}
    return parse_request("db", command)


def at(time: int, number: int = 1, **more) -> Event:
    return event(data_of(time, number, **more))


@dataclass
class Streams:
    """Scripted shards and merged streams over them; ``rnd`` makes every choice."""

    scripts: dict[str, Script]
    rnd: Random
    pending: dict[MergedStream, dict[int, list[CursorBatch]]] = field(default_factory=dict)

    def open(self, start_at: Timestamp, keep_bytes: int) -> MergedStream:
        hosts = {shard: f"{shard}/h:1" for shard in SHARDS}
        stream = MergedStream(
            request(),
            hosts,
            start_at=start_at,
            topology_from=START,
            keep_bytes=keep_bytes,
            sizes=BlockSizes(join_bytes=300),
        )
        self.pending[stream] = {}
        self.act(stream, stream.openings)
        return stream

    def act(self, stream: MergedStream, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, OpenRemote):
                batches = self.scripts[action.target].batches(action.start_at, self.rnd)
                self.pending[stream][action.remote] = list(batches)
            elif isinstance(action, CloseRemote):
                self.pending[stream].pop(action.remote)

    def arrive(self) -> bool:
        """Deliver one batch at random; return False if there is none left."""
        waiting = [
            (stream, remote, batches)
            for stream, remotes in self.pending.items()
            for remote, batches in remotes.items()
            if batches
        ]
        if not waiting:
            return False
        stream, remote, batches = self.rnd.choice(waiting)
        self.act(stream, stream.batch_arrived(remote, batches.pop(0)))
        stream.merger.merge_ahead(self.rnd.choice([0, 300, 1 << 20]))
        return True


@dataclass
class Client:
    """A client, the stream that it reads, and the events that it has received."""

    asked: StreamRequest
    start_at: Timestamp
    stream: MergedStream
    log_reader: LogReader
    events: list[bytes] = field(default_factory=list)
    pbrt: bytes = b""
    closed: bool = False
    error: CommandError | None = None

    @property
    def over(self) -> bool:
        return self.closed or self.error is not None

    def take(
        self, max_events: int | None, max_bytes: int = 16 << 20, enough: int | None = None
    ) -> None:
        was_ready = self.log_reader.is_ready()
        try:
            taken = self.log_reader.take(max_events, max_bytes, enough)
        except CommandError as error:
            self.error = error
            return
        if was_ready:
            assert taken.events or taken.closed
        self.check(taken)
        self.events += taken.events
        self.pbrt = taken.pbrt
        self.closed = taken.closed

    def check(self, taken: Batch) -> None:
        """Check that tokens never go back and lie between delivered and following events."""
        key = token_data(taken.pbrt)
        if self.pbrt:
            assert key >= token_data(self.pbrt)
            for one in taken.events:
                assert token_data(token_of(one)) >= token_data(self.pbrt)
        if taken.events:
            assert key >= token_data(token_of(taken.events[-1]))
        assert taken.size == sum(map(len, taken.events))


class Fanout:
    """Clients that join, read slowly or fast, fall behind, catch up and leave."""

    def __init__(self, streams: Streams, keep_bytes: int) -> None:
        self.streams = streams
        self.rnd = streams.rnd
        self.keep_bytes = keep_bytes
        self.shared = streams.open(START, keep_bytes)
        self.clients: list[Client] = []
        self.private = 0
        self.joined = 0

    def come(self, asked: StreamRequest) -> None:
        start_at = asked.start_time or START
        point = starting_point(asked, start_at, 1)
        stream = self.source(point.after, start_at)
        self.clients.append(Client(asked, start_at, stream, LogReader(View(stream), point)))

    def source(self, after: bytes, start_at: Timestamp) -> MergedStream:
        if self.shared.log.floor <= after and not self.shared.ended:
            return self.shared
        self.private += 1
        return self.streams.open(start_at, 0)

    def read(self, client: Client, *, greedy: bool = False, moves: bool = False) -> None:
        log_reader = client.log_reader
        start_at = cluster_time_of(log_reader.needs)
        if log_reader.lost:
            client.stream = self.source(log_reader.needs, start_at)
            log_reader.continue_on(View(client.stream))
        elif moves:  # perhaps with events in hand
            client.stream = self.streams.open(start_at, 0)
            log_reader.continue_on(View(client.stream))
        if client.stream is self.shared or self.shared.ended:
            pass
        elif log_reader.switch_to(self.shared, lambda _: View(self.shared)):
            client.stream = self.shared
            self.joined += 1
        if greedy:
            client.take(None)
        else:
            client.take(
                self.rnd.choice([None, 1, 2, 5]),
                self.rnd.choice([16 << 20, 700]),
                self.rnd.choice([None, 1, 700]),
            )

    def finish(self) -> None:
        """Deliver all batches and let every client read to the end."""
        while self.streams.arrive():
            pass
        for client in self.clients:
            for _ in range(3):
                while not client.over and (client.log_reader.is_ready() or client.log_reader.lost):
                    self.read(client, greedy=self.rnd.random() < 0.5)
                    while self.streams.arrive():
                        pass
            if not client.over:
                self.read(client, greedy=True)

    def step(self, starts: list[StreamRequest]) -> None:
        choice = self.rnd.random()
        if choice < 0.45:
            self.streams.arrive()
        elif choice < 0.6 and len(self.clients) < 6:
            self.come(self.rnd.choice(starts))
        elif choice < 0.62 and self.clients:
            self.clients.remove(self.rnd.choice(self.clients))
        elif self.clients:
            # Clients that joined early read less often.
            last = len(self.clients) - 1
            client = self.clients[round(last * self.rnd.random() ** 0.4)]
            if not client.over:
                self.read(client, moves=self.rnd.random() < 0.2)


def expected(client: Client, scripts: dict[str, Script], rnd: Random) -> Driver | CommandError:
    """Return the run of a private stream with the client's request, or its error."""
    hosts = {shard: f"{shard}/h:1" for shard in SHARDS}
    stream = PrivateStream(
        client.asked, hosts, start_at=client.start_at, topology_from=START, token_version=1
    )
    driver = Driver(stream, scripts, rnd)
    try:
        return driver.run()
    except CommandError as error:
        return error


@st.composite
def scripted_shards(draw: st.DrawFn) -> dict[str, Script]:
    """Draw events on three shards, with equal tokens and perhaps a common invalidate."""
    slots = draw(
        st.lists(
            st.tuples(st.integers(11, 30), st.integers(1, 63), st.sets(st.sampled_from(SHARDS))),
            max_size=50,
            unique_by=lambda slot: slot[:2],
        )
    )
    dropped = draw(st.booleans())
    last = token_of(at(40, 0, invalidate=True)[1]) if dropped else END
    scripts = {}
    tag = count()
    for shard in SHARDS:
        events = sorted(
            event(data_of(time, number), shard=shard, n=next(tag), pad="x" * 30)
            for time, number, owners in slots
            if shard in (owners or {SHARDS[number % 3]})
        )
        if dropped:
            events += [at(40, 0), at(40, 0, invalidate=True)]
        scripts[shard] = Script(events, last, invalidated=dropped)
    scripts["config"] = Script([], END)
    return scripts


def starts_of(scripts: dict[str, Script], rnd: Random) -> list[StreamRequest]:
    everything = sorted(one for script in scripts.values() for one in script.events)
    plain = [key for key, _ in everything if b"6F5A1004" not in key]
    starts = [request(), request(startAtOperationTime=Timestamp(rnd.randrange(11, 45), 1))]
    starts.append(request(resumeAfter=bson.decode(hwm(rnd.randrange(11, 32), 1))))
    starts.append(request(resumeAfter={"_data": data_of(rnd.randrange(11, 30), 63)}))
    some = rnd.choices(plain, k=4) if plain else []
    return starts + [request(resumeAfter={"_data": key.decode()}) for key in some]


@settings(max_examples=150, deadline=None)
@given(scripted_shards(), st.integers(0, 3000), st.randoms(use_true_random=False))
def test_each_client_gets_the_batches_of_a_private_stream(
    scripts: dict[str, Script], keep_bytes: int, rnd: Random
):
    fanout = Fanout(Streams(scripts, rnd), keep_bytes)
    starts = starts_of(scripts, rnd)
    for _ in range(rnd.randrange(20, 150)):
        fanout.step(starts)
    fanout.finish()
    for client in fanout.clients:
        alone = expected(client, scripts, rnd)
        if isinstance(alone, CommandError):
            assert client.error is not None
            assert client.error.to_reply() == alone.to_reply()
            continue
        assert client.error is None
        assert client.events == alone.events
        assert client.closed == alone.taken[-1].closed
        assert client.pbrt == alone.taken[-1].pbrt
