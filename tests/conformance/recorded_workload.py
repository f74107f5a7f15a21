"""The recorded workload run again, and the recorded cases' tokens found among its events."""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from tests.conformance.streams import Event, next_tick, now
from tests.harness.clusters import Client, TestCluster
from tests.recordings.draining import drain
from tests.recordings.recorded import cases
from tests.recordings.workload import setup, workload

_TOKEN = re.compile("82[0-9A-F]{40,}")
_RANDOM = re.compile("5A1004[0-9A-F]{32}|(?<=726567696F6E00)3C[0-9A-F]{4}")
"""A collection's UUID, or a region, in a token."""

_POSITION = re.compile("resume-([0-9]+)-([a-z]+)")
_STREAMS = ("db", "coll-orders", "coll-big-split")
"""Between them these have all tokens that the cases resume from."""

_TIME_DIGITS = 18


@dataclass(frozen=True)
class Workload:
    """One run of the workload: its events by stream, and its tokens by the recorded ones."""

    events: Mapping[str, list[Event]]
    tokens: Mapping[str, str]

    @property
    def drops_at_one_time(self) -> bool:
        """Whether ``orders`` was dropped as it was for the recording.

        All shards but the database's primary did so at one cluster time. Real servers mostly do,
        but a no-op may put one of them a tick ahead of the others.
        """
        times = [
            event["clusterTime"]
            for event in self.events["db"]
            if event["operationType"] == "drop" and event["ns"]["coll"] == "orders"
        ]
        return len({*times[:-1]}) == 1 and times[-1] > times[0]

    def here(self, value: Any) -> Any:
        """Return a recorded value with the tokens that this run has in their place."""
        if isinstance(value, str):
            return _TOKEN.sub(lambda match: self.tokens.get(match[0], match[0]), value)
        if isinstance(value, Mapping):
            return {name: self.here(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self.here(item) for item in value]
        return value

    def after(self, token: str, count: int) -> list[Event]:
        """Return the events of the stream on ``rec`` that come after a token of this run."""
        return [e for e in self.events["db"] if e["_id"]["_data"] > token][:count]


def run_workload(cluster: TestCluster, client: Client) -> Workload:
    """Run the workload through the router that ``client`` is connected to."""

    def start_shard() -> tuple[str, str]:
        name, host = cluster.start_shard()
        cluster.shards[name] = host
        return name, host

    shards = list(cluster.shards)[:3]
    setup(client, shards)
    start = next_tick(now(client))
    workload(client, shards, start_shard, random.Random(1))
    end = now(client)
    events = {stream: drain(client, stream, start, end).events for stream in _STREAMS}
    return Workload(events, _tokens(events))


def _tokens(events: Mapping[str, list[Event]]) -> dict[str, str]:
    """Find the cases' tokens, which come from a run of their own, by what they are about."""
    tokens: dict[str, str] = {}
    # Those named by their place in the stream first: of a document's events it tells which.
    for name, case in sorted(cases().items(), key=lambda item: not _POSITION.match(item[0])):
        steps = case.get("steps", ())
        named = [[step["command"], step["reply"].get("errmsg")] for step in steps]
        named += [case.get("after"), case.get("next")]
        target = steps[0]["command"].get("aggregate") if steps else None
        for token in _TOKEN.findall(repr(named)):
            place = _POSITION.match(name)
            found = _at(events["db"], place, token) if place else _first(events, target, token)
            if token not in tokens and found is not None:
                tokens[token] = found
    return tokens


def _at(events: list[Event], place: re.Match[str], token: str) -> str:
    """Return the token like ``token`` that is nearest to the case's place."""
    wanted = int(place[1])
    alike = [
        (abs(position - wanted), event["_id"]["_data"])
        for position, event in enumerate(events)
        if event["operationType"] == place[2] and _about(event["_id"]["_data"]) == _about(token)
    ]
    return min(alike)[1]


def _first(streams: Mapping[str, list[Event]], target: Any, token: str) -> str | None:
    """Return the first token like ``token``, of the collection that the case watches if it does."""
    for event in chain.from_iterable(streams.values()):
        of_target = not isinstance(target, str) or event.get("ns", {}).get("coll") in (None, target)
        if of_target and _about(event["_id"]["_data"]) == _about(token):
            data: str = event["_id"]["_data"]
            return data
    return None


def _about(token: str) -> str:
    """Return a token without what differs from run to run."""
    return _RANDOM.sub("", token[_TIME_DIGITS:])
