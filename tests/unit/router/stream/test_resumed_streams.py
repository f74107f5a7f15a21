"""A merged stream that resumes after a token, or ends with an invalidate."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from random import Random
from typing import Any

import bson
import pytest
from bson import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from router.stream.readers.log_reader import Batch
from shard_client.bson.resume_token import TIME_DIGITS, ResumeToken, cluster_time_of, first_key
from shard_client.errors import CommandError
from shard_client.remote_cursor.cursor_reply import CursorBatch, token_key, token_of
from tests.doubles.scripted_streams import Driver, Event, Script, batch, hwm
from tests.unit.router.made_tokens import data_of, event
from tests.unit.router.stream.streams_by_hand import (
    CONFIG,
    END,
    A,
    B,
    at,
    feed,
    make,
    opened,
    times,
)


@dataclass(frozen=True)
class Change:
    """An event of a shard at cluster time 10, or 11 if it is ``later``."""

    operation: str
    key: int
    index: int = 0
    later: bool = False

    @property
    def place(self) -> tuple[bool, int]:
        return self.later, self.index

    def data(self, version: int) -> str:
        index = f"2B{self.index << 1:02X}" if self.index else "29"
        kind = {"version": version, "operation": self.operation, "txn_op_index": index}
        data = data_of(11 if self.later else 10, self.key, **kind)
        if self.operation == "modify" and version == 1:  # such events have one identifier in both
            data = self.data(2).replace("2B042C", "2B022C", 1)
        return data

    def event(self, version: int, shown: str | None = "") -> Event:
        return event(
            self.data(version),
            operationType=self.operation if shown == "" else shown,
            documentKey=self.key,
        )


OPERATIONS = ["insert", "update", "replace", "delete", "modify"]
CHANGES = st.lists(
    st.builds(
        Change, st.sampled_from(OPERATIONS), st.integers(1, 63), st.integers(0, 2), st.booleans()
    ),
    min_size=1, max_size=12, unique_by=lambda change: change.key,
)  # fmt: skip


@dataclass
class WanderingDriver(Driver):
    """Moves the reader to another stream, or resumes it on one of any version, some times."""

    of_version: Mapping[int, Mapping[str, Script]] = field(default_factory=dict)
    left: int = 8

    def take(self) -> Batch:
        taken = super().take()
        self.left -= 1
        if self.left < 0 or (resumes := self.rnd.choice((True, False, None))) is None:
            return taken
        reader = self.stream.log_reader
        if resumes:
            start: dict[str, Any] = {"resumeAfter": bson.decode(taken.pbrt)}
            version = self.rnd.choice((1, 2))
            self.scripts = self.of_version[version]
        else:
            start = {"startAtOperationTime": cluster_time_of(reader.needs)}
            version = next(each for each, of in self.of_version.items() if of is self.scripts)
        shards, spans = len(self.scripts) - 1, () if resumes else reader.needs_spans
        stream = make(options=start, shards=shards, version=version, spans=spans)
        self.follow(stream, None if resumes else reader)
        return taken


@settings(max_examples=100, deadline=None)
@given(CHANGES, st.sampled_from([1, 2]), st.booleans(), st.randoms(use_true_random=False))
def test_events_beside_a_token_of_another_version_get_its_version_and_order(
    changes: list[Change], version: int, wanders: bool, rnd: Random
) -> None:
    """Versions order the changes of several shards at one cluster time differently."""
    token, other = rnd.choice(changes), 3 - version
    beside = [each for each in changes if each.place == token.place]
    seen = sorted(each.event(version) for each in beside)
    expected = [raw for key, raw in seen if key > token.data(version).encode()]
    expected += [
        raw for _, raw in sorted(each.event(other) for each in changes if each.place > token.place)
    ]
    owners = [rnd.randrange(3) for _ in changes]
    scripts: dict[int, dict[str, Script]] = {}
    for each in (1, 2):
        scripts[each] = {"config": Script([], END)}
        for shard in range(3):
            owned = zip(changes, owners, strict=True)
            events = sorted(change.event(each) for change, owner in owned if owner == shard)
            scripts[each][f"shard{shard}"] = Script(events, hwm(50, 0, each), version=each)
    after = {"resumeAfter": {"_data": token.data(version)}}
    stream = make(options=after, shards=3, version=other)
    if not wanders:
        assert Driver(stream, scripts[other], rnd, max_events=9).run().events == expected
        return
    run = WanderingDriver(stream, scripts[other], rnd, max_events=9, of_version=scripts).run()
    assert sorted(map(documents, run.events)) == sorted(map(documents, expected))


def documents(event: bytes) -> tuple[str, int]:
    fields = bson.decode(event)
    return fields["operationType"], fields["documentKey"]


@pytest.mark.parametrize("stage", [{"$unset": "operationType"}, {"$set": {"operationType": "x"}}])
def test_a_stage_that_hides_the_type_makes_a_place_beside_the_token_unknown(stage):
    token = Change("insert", 5)
    for beside, known in (([], True), ([Change("update", 3, index=1)], True),
                          ([Change("update", 3)], False)):  # fmt: skip
        pipeline = [{"$changeStream": {"resumeAfter": {"_data": token.data(2)}}}, stage]
        stream = opened(pipeline=pipeline)
        events = [each.event(1, None) for each in (*beside, token, Change("delete", 1, later=True))]
        feed(stream, *sorted(events))
        if known:
            assert stream.take(None).events == [raw for _, raw in sorted(events)[1:]]
        else:
            with pytest.raises(CommandError, match="changes or removes operationType") as caught:
                stream.take(None)
            assert caught.value.code == 280


def test_a_client_that_moves_between_events_with_one_token_gets_each_once():
    twins = [event(data_of(20, 1), shard=remote) for remote in (A, B)]
    first, second = opened(), opened()
    for each in (first, second):
        for remote, twin in zip((A, B), twins, strict=True):
            each.batch_arrived(remote, batch([twin, at(30, remote)], hwm(50)))
        each.batch_arrived(CONFIG, batch([], hwm(50)))
    reader = first.log_reader
    found = reader.take(1).events
    reader.continue_on(second)
    assert found + reader.take(None).events == [raw for _, raw in [*twins, at(30, A), at(30, B)]]


def test_a_client_needs_what_lies_beyond_its_watermarks_once_it_has_caught_up():
    own, other = opened(), opened(start_at=Timestamp(30, 1))
    for upto, moves in ((20, False), (40, True)):
        feed(own, at(upto - 5), upto=upto)
        assert not own.log_reader.catch_up()
        assert times(own.take(1).events) == [upto - 5]
        feed(own, upto=upto + 5)
        assert own.log_reader.catch_up()
        assert other.covers(own.log_reader.needs, own.log_reader.needs_spans) is moves


def is_end(event: Event) -> bool:
    return ResumeToken.decode(event[0].decode()).from_invalidate


@dataclass
class Incarnations(Script):
    """A shard whose collection is dropped again and again: each reading ends at an invalidate.

    A filter leaves out the events that are not ``shown``.
    """

    shown: Callable[[Event], bool] = lambda _: True

    def batches(self, start_at: Timestamp, rnd: Random) -> deque[CursorBatch]:
        return self.beyond(first_key(start_at)).batches(start_at, rnd)

    def beyond(self, after: bytes) -> Script:
        found = [event for event in self.events if event[0] > after]
        end = next((number for number, event in enumerate(found) if is_end(event)), None)
        shown = list(filter(self.shown, found if end is None else found[: end + 1]))
        last = self.last_pbrt if end is None else token_of(found[end][1])
        return Script(shown, last, invalidated=end is not None)

    def invalidates(self) -> tuple[list[Event], list[Event]]:
        """Return the invalidate that a stream skips, and those that end it."""
        ends = list(filter(is_end, self.events))
        first = next((each for each in self.events if self.shown(each) or is_end(each)), None)
        skipped = [each for each in ends[:1] if first and time_of(first) == time_of(each)]
        return skipped, ends[len(skipped) :]


def time_of(event: Event) -> bytes:
    return event[0][:TIME_DIGITS]


class MovingDriver(Driver):
    """Moves the reader to a stream that is opened where it is, again and again."""

    def take(self) -> Batch:
        taken = super().take()
        if not taken.closed and self.rnd.random() < 0.4:
            reader = self.stream.log_reader
            stream = make(
                options={"startAtOperationTime": cluster_time_of(reader.needs)},
                target="c",
                shards=len(self.scripts) - 1,
                spans=reader.needs_spans,
            )
            self.follow(stream, reader)
        return taken


@settings(max_examples=150)
@given(
    st.lists(st.dictionaries(st.integers(11, 14), st.booleans()), min_size=1, max_size=3),
    st.sampled_from([lambda _: True, lambda _: False, lambda event: not is_end(event)]),
    st.sampled_from([Driver, MovingDriver]),
    st.randoms(use_true_random=False),
)
def test_each_shard_skips_one_invalidate_wherever_the_client_moves(
    drops: list[dict[int, bool]], shown: Callable[[Event], bool], driver: type[Driver], rnd: Random
) -> None:
    """``drops`` tells for each shard at which times it has a drop (true) or an insert."""
    after = at(10, 0, invalidate=True)
    drops[0][10] = True
    shards: dict[str, Incarnations] = {}
    for number, times_of in enumerate(drops):
        events = [at(time, 0 if drop else number + 1) for time, drop in times_of.items()]
        events += [at(time, 0, invalidate=True) for time, drop in times_of.items() if drop]
        shards[f"shard{number}"] = Incarnations(sorted(events), END, shown=shown)
    skipped, ends = zip(*(each.invalidates() for each in shards.values()), strict=True)
    end = min([token_key(END), *(key for each in ends for key, _ in each)])
    everything = [each for shard in shards.values() for each in filter(shown, shard.events)]
    for each in filter(shown, chain.from_iterable(skipped)):
        everything.remove(each)

    stream = make(
        options={"startAfter": bson.decode(token_of(after[1]))}, target="c", shards=len(drops)
    )
    scripts = {**shards, "config": Script([], END)}
    run = driver(
        stream, scripts, rnd, lambda shard, token: shards[shard].beyond(token_key(token))
    ).run()
    assert run.events == [raw for key, raw in sorted(everything) if after[0] < key <= end]
    assert token_key(run.taken[-1].pbrt) == end
    assert run.taken[-1].closed is (end != token_key(END))
    # No token points to an invalidate that was not delivered.
    tokens = {token_key(taken.pbrt) for taken in run.taken}
    assert not tokens & {key for each in skipped for key, _ in each} - {after[0], end}
