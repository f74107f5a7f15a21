"""Running the recorded workload again and matching its tokens with the recorded ones."""

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
"""The parts of a token that differ from run to run: a collection's UUID, a region."""

_POSITION = re.compile("resume-([0-9]+)-([a-z]+)")
_STREAMS = ("db", "coll-orders", "coll-big-split")
"""The streams whose events include every token that a case resumes from."""

_TIME_DIGITS = 18


@dataclass(frozen=True)
class Workload:
    """One run of the workload: events by stream, and this run's tokens by recorded token."""

    events: Mapping[str, list[Event]]
    tokens: Mapping[str, str]

    @property
    def drops_at_one_time(self) -> bool:
        """Whether the shards dropped ``orders`` at the same cluster times as in the recording.

        In the recording all shards but the database's primary dropped it at one cluster time. Real
        servers usually do so, but a no-op may put one of them a tick ahead of the others.
        """
        times = [
            event["clusterTime"]
            for event in self.events["db"]
            if event["operationType"] == "drop" and event["ns"]["coll"] == "orders"
        ]
        return len({*times[:-1]}) == 1 and times[-1] > times[0]

    def here(self, value: Any) -> Any:
        """Return a recorded value with its tokens replaced by this run's."""
        if isinstance(value, str):
            return _TOKEN.sub(lambda match: self.tokens.get(match[0], match[0]), value)
        if isinstance(value, Mapping):
            return {name: self.here(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self.here(item) for item in value]
        return value

    def after(self, token: str, count: int) -> list[Event]:
        """Return up to ``count`` events of the stream on ``rec`` after a token of this run."""
        return [e for e in self.events["db"] if e["_id"]["_data"] > token][:count]


def run_workload(cluster: TestCluster, client: Client) -> Workload:
    """Run the workload through the router that ``client`` is connected to."""

    shards = list(cluster.shards)[:3]
    setup(client, shards)
    start = next_tick(now(client))
    workload(client, shards, cluster, random.Random(1))
    end = now(client)
    events = {stream: drain(client, stream, start, end).events for stream in _STREAMS}
    return Workload(events, _tokens(events))


def _tokens(events: Mapping[str, list[Event]]) -> dict[str, str]:
    """Match the tokens in the cases with this run's tokens that describe the same changes."""
    tokens: dict[str, str] = {}
    # Cases named by a position come first: a position identifies one of a document's events.
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
    """Return the matching token that is nearest to the position in the case's name."""
    wanted = int(place[1])
    alike = [
        (abs(position - wanted), event["_id"]["_data"])
        for position, event in enumerate(events)
        if event["operationType"] == place[2] and _about(event["_id"]["_data"]) == _about(token)
    ]
    return min(alike)[1]


def _first(streams: Mapping[str, list[Event]], target: Any, token: str) -> str | None:
    """Return the first matching token, limited to ``target`` if that is a collection."""
    for event in chain.from_iterable(streams.values()):
        of_target = not isinstance(target, str) or event.get("ns", {}).get("coll") in (None, target)
        if of_target and _about(event["_id"]["_data"]) == _about(token):
            data: str = event["_id"]["_data"]
            return data
    return None


def _about(token: str) -> str:
    """Return a token without the parts that differ from run to run."""
    return _RANDOM.sub("", token[_TIME_DIGITS:])
