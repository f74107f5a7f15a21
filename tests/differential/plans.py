"""Random change streams: scope, start, options and steps of reading."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from bson import Binary, Timestamp

from tests.differential import raw_values
from tests.differential.pipelines import AFTER_FRAGMENTS, SPLIT, Pipeline, pipeline
from tests.differential.workload import PLAIN, SHARDED

Token = dict[str, Any]
"""A resume token as a driver keeps it."""

_GOOD_SIZES = (0, 1, 2, 3, 10, 101, 5000)
_WAITS = (1, 5, 20, 100)
_BAD_MORE: tuple[dict[str, Any], ...] = (
    {"batchSize": -1},
    {"batchSize": "many"},
    {"maxTimeMS": -1},
    {"maxTimeMS": "long"},
    {"bogus": 1},
)


@dataclass(frozen=True)
class Plan:
    """One change stream and the steps in which it is read.

    Args:
        name: its name in reports.
        database: the database of its commands.
        command: the opening ``aggregate``.
        more: the getMores' fields except the cursor; used in turn, over and over.
        bad: fields of an invalid getMore right after the opening.
        damaged: whether it starts after a damaged token.
        live: whether it is opened before the workload and read during it.
        legs: the number of replies after which the other server resumes from the last
        postBatchResumeToken; 0 if one server reads the whole stream.
        pause: seconds between the first getMore and the second.
        raw: whether its documents are such as no driver writes.
    """

    name: str
    database: str
    command: dict[str, Any]
    more: Sequence[dict[str, Any]] = field(default=({"maxTimeMS": 20},))
    bad: dict[str, Any] | None = None
    damaged: bool = False
    live: bool = False
    legs: int = 0
    pause: float = 0.0
    raw: bool = False

    @property
    def collection(self) -> str:
        """The collection field of a getMore."""
        target = self.command["aggregate"]
        return target if isinstance(target, str) else "$cmd.aggregate"

    @property
    def first_batch_size(self) -> int | None:
        """The batch size in the opening."""
        size = self.command.get("cursor", {}).get("batchSize")
        return size if isinstance(size, int) and size >= 0 else None

    @property
    def stage(self) -> dict[str, Any]:
        """The options of ``$changeStream``."""
        options: dict[str, Any] = self.command["pipeline"][0]["$changeStream"]
        return options

    @property
    def starts_somewhere(self) -> bool:
        """Whether the stream has an explicit start, so that both servers start there."""
        return bool({"startAtOperationTime", "resumeAfter", "startAfter"} & set(self.stage))

    @property
    def splits(self) -> bool:
        """Whether large events are split."""
        return SPLIT in self.command["pipeline"]

    @property
    def after_end(self) -> bool:
        """Whether the stream starts after the invalidate that ended another one."""
        return self.name.endswith("'")

    @property
    def session(self) -> dict[str, Any]:
        """The session fields of the stream's commands."""
        return {name: value for name, value in self.command.items() if name == "lsid"}

    def resumed(self, token: Token, *, invalidated: bool = False) -> "Plan":
        """Return the plan of a stream that resumes after ``token``."""
        starts = ("startAtOperationTime", "resumeAfter", "startAfter")
        options = {name: option for name, option in self.stage.items() if name not in starts}
        options["startAfter" if invalidated else "resumeAfter"] = token
        stages = [{"$changeStream": options}, *self.command["pipeline"][1:]]
        return replace(self, command={**self.command, "pipeline": stages})

    def after_invalidate(self, token: Token) -> "Plan":
        """Return the plan of a stream that starts after an invalidate's ``token``."""
        plan = self.resumed(token, invalidated=True)
        return replace(plan, name=f"{self.name}'", bad=None, live=False, legs=0)

    def slow(self) -> "Plan":
        """Return the plan of a client that reads the same stream one event at a time."""
        return replace(self, more=({"batchSize": 1, "maxTimeMS": 20},), pause=0.1)

    def from_time(self, opened: Timestamp) -> "Plan":
        """Return this plan with its token replaced by the token's cluster time.

        A shard that is read alone may not have the token's event.

        Args:
            opened: the time to start from if the plan names neither a token nor a time.
        """
        options = {"startAtOperationTime": opened, **self.stage}
        for name in ("resumeAfter", "startAfter"):
            token = options.pop(name, None)
            if token is not None:
                options["startAtOperationTime"] = token_time(token["_data"])
        stages = [{"$changeStream": options}, *self.command["pipeline"][1:]]
        return replace(self, command={**self.command, "pipeline": stages})


def is_invalidate(token: str) -> bool:
    """Return whether a token is an invalidate's: the field after txnOpIndex is true."""
    return re.match("82.{16}2B0[24](?:29|2C0100)(?:29|2B..|2C.{4}|2D.{6})6F", token) is not None


def token_time(token: str) -> Timestamp:
    """Return the cluster time of a resume token's ``_data``."""
    return Timestamp(int(token[2:10], 16), int(token[10:18], 16))


_EVENT_OF_VERSION_2 = "2B042C0100"
"""What follows the cluster time in the version 2 token of an event, in hexadecimal."""


class Planner:
    """Draws plans for the streams of one seed.

    Args:
        chance: makes all random choices.
        databases: the workload's databases.
        start: a cluster time before the workload.
        raw: whether stages look into documents that drivers do not write.
    """

    def __init__(
        self, chance: Random, databases: Sequence[str], start: Timestamp, *, raw: bool = False
    ) -> None:
        self._chance = chance
        self._raw = raw
        self._databases = databases
        self._start = start

    def reference(self) -> list[Plan]:
        """Return unfiltered streams from the start, whose tokens other streams start from."""
        first, second = self._databases
        cluster = self._scope("admin", {"allChangesForCluster": True, "showExpandedEvents": True})
        scopes = [
            cluster,
            self._scope(first, {}),
            self._scope(second, {"showExpandedEvents": True}),
            self._scope(first, {}, target=self._chance.choice(SHARDED)),
            *(self._scope(second, {}, target=name) for name in self._chance.sample(PLAIN, 2)),
            *(self._matching_little(second, name) for name in PLAIN),
        ]
        return [
            replace(plan, name=f"reference {number}", command=self._from_start(plan.command))
            for number, plan in enumerate(scopes)
        ]

    def large(self) -> Plan:
        """Return a stream from the start whose large events are split."""
        images = {"fullDocument": "whenAvailable", "fullDocumentBeforeChange": "whenAvailable"}
        plan = self._scope(self._databases[0], images, target="images")
        stages = [*plan.command["pipeline"], SPLIT]
        command = self._from_start({**plan.command, "pipeline": stages})
        return replace(plan, name="reference large", command=command)

    def after_fragment(self, number: int, fragments: Sequence[Token]) -> Plan:
        """Return a stream that starts after a fragment, maybe of an event that it splits otherwise.

        Its shards may fail at the event (10334), or at images that are missing.
        """
        chance = self._chance
        options = {
            chance.choice(("resumeAfter", "startAfter")): chance.choice(fragments),
            "fullDocument": chance.choice(("default", "updateLookup", "whenAvailable", "required")),
            "fullDocumentBeforeChange": chance.choice(("off", "whenAvailable", "required")),
        }
        plan = self._scope(self._databases[0], options, target=chance.choice((1, "images")))
        stages = [*plan.command["pipeline"], *chance.choice(AFTER_FRAGMENTS)]
        if chance.random() < 0.9:
            stages.append(SPLIT)
        command = {**plan.command, "pipeline": stages}
        return replace(plan, name=f"fragment {number}", command=command, more=[self._more()])

    def _matching_little(self, database: str, collection: str) -> Plan:
        plan = self._scope(database, {}, target=collection)
        kind = self._chance.choice(("none", "replace", "drop"))
        stages = [*plan.command["pipeline"], {"$match": {"operationType": kind}}]
        return replace(plan, command={**plan.command, "pipeline": stages})

    def live(self, number: int) -> Plan:
        """Return a stream from now."""
        plan = self._random(whole=0.0)
        options = {**plan.stage, "fullDocument": self._chance.choice(("default", "whenAvailable"))}
        stages = [{"$changeStream": options}, *plan.command["pipeline"][1:]]
        command = {**plan.command, "pipeline": stages}
        return replace(plan, name=f"live {number}", command=command, live=True)

    def past(self, number: int, tokens: Sequence[Token], times: Sequence[Timestamp]) -> Plan:
        """Return a stream that starts at one of these tokens or times."""
        plan = self._random(whole=0.2)
        if not plan.splits:  # it may end a mongos (docs/protocol.md#differences)
            tokens = [each for each in tokens if each["_data"][18:28] != _EVENT_OF_VERSION_2]
        start = self._starting(tokens, times)
        options = {**start, **plan.stage}
        items = list(options.items())
        self._chance.shuffle(items)
        stages = [{"$changeStream": dict(items)}, *plan.command["pipeline"][1:]]
        legs = self._chance.randrange(1, 4) if self._chance.random() < 0.15 else 0
        if any(isinstance(at, dict) and is_invalidate(str(at["_data"])) for at in start.values()):
            # Each shard skips an invalidate near the token; a stream that resumes skips none.
            legs = 0
        command = {**plan.command, "pipeline": stages}
        damaged = any(isinstance(at, dict) and at not in tokens for at in start.values())
        return replace(plan, name=f"past {number}", command=command, legs=legs, damaged=damaged)

    def _starting(self, tokens: Sequence[Token], times: Sequence[Timestamp]) -> dict[str, Any]:
        kind = self._chance.random()
        if kind < 0.3 or not tokens:
            return {"startAtOperationTime": self._start}
        if kind < 0.5:
            return {"startAtOperationTime": self._chance.choice(times)}
        token = self._chance.choice(tokens)
        if self._chance.random() < 0.05:
            token = {"_data": self._damaged(token["_data"])}
        name = self._chance.choice(("resumeAfter", "startAfter"))
        start: dict[str, Any] = {name: token}
        if self._chance.random() < 0.02:
            start["startAtOperationTime"] = self._start
        return start

    def _damaged(self, token: str) -> Any:
        at = self._chance.randrange(len(token))
        return self._chance.choice(
            (
                token[:at],
                token[:at] + self._chance.choice("0123456789ABCDEFG") + token[at + 1 :],
                token.lower(),
                token + "04",
                "",
                7,
            )
        )

    def _random(self, whole: float) -> Plan:
        chance = self._chance
        kind = chance.random()
        database = self._databases[chance.random() < 0.25]
        options = self._options()
        if kind < 0.3:
            may = options.get("fullDocument") != "updateLookup" and chance.random() < whole
            plan = self._scope("admin", {"allChangesForCluster": True, **options}, whole=may)
        elif kind < 0.6:
            plan = self._scope(database, options)
        else:
            names = (*SHARDED * 2, *PLAIN, "view", "series", "none")
            plan = self._scope(database, options, target=chance.choice(names))
        stages = [*plan.command["pipeline"]]
        if self._raw and chance.random() < 0.6:
            stages.append(raw_values.stage(chance))
        else:
            stages += pipeline(chance, self._start)
        command = {**plan.command, "pipeline": stages, **self._fields()}
        more = [self._more() for _ in range(chance.randrange(1, 4))]
        bad = chance.choice(_BAD_MORE) if chance.random() < 0.03 else None
        return replace(plan, command=command, more=more, bad=bad, raw=self._raw)

    def _options(self) -> dict[str, Any]:
        chance = self._chance
        options: dict[str, Any] = {}
        if chance.random() < 0.5:
            options["fullDocument"] = chance.choices(
                ("updateLookup", "whenAvailable", "required", "default", "bad"), (8, 4, 2, 2, 0.3)
            )[0]
        if chance.random() < 0.35:
            options["fullDocumentBeforeChange"] = chance.choices(
                ("whenAvailable", "required", "off", "bad"), (6, 2, 2, 0.3)
            )[0]
        if chance.random() < 0.4:
            options["showExpandedEvents"] = chance.random() < 0.9
        if chance.random() < 0.02:
            options |= chance.choice(
                (
                    {"showMigrationEvents": True},
                    {"allChangesForCluster": True},
                    {"unknown": 1},
                    {"showExpandedEvents": "yes"},
                    {"fullDocument": None},
                    {"showSystemEvents": True},
                )
            )
        return options

    def _fields(self) -> dict[str, Any]:
        chance = self._chance
        cursor: dict[str, Any] = {}
        if chance.random() < 0.5:
            cursor["batchSize"] = chance.choice((0, *_GOOD_SIZES))
        fields: dict[str, Any] = {"cursor": cursor}
        if chance.random() < 0.1:
            fields["collation"] = {"locale": "en", "strength": chance.choice((1, 2, 3))}
        if chance.random() < 0.15:
            fields |= chance.choice(
                (
                    {"comment": "a comment"},
                    {"readConcern": {"level": "majority"}},
                    {"readConcern": {"level": "local"}},
                    {"allowDiskUse": True},
                    {"let": {"v": 1}},
                    {"maxTimeMS": 60_000},
                    {"bypassDocumentValidation": True},
                    {"$readPreference": {"mode": "secondaryPreferred"}},
                    {"lsid": {"id": Binary(chance.randbytes(16), 4)}},
                    {"cursor": {"batchSize": -1}},
                    {"unknownField": 1},
                    {"explain": False},
                )
            )
        return fields

    def _more(self) -> dict[str, Any]:
        chance = self._chance
        more: dict[str, Any] = {"maxTimeMS": chance.choice(_WAITS)}
        if chance.random() < 0.5:
            more["batchSize"] = chance.choice(_GOOD_SIZES)
        if chance.random() < 0.03:
            del more["maxTimeMS"]
        return more

    def _scope(
        self, database: str, options: dict[str, Any], target: Any = 1, *, whole: bool = False
    ) -> Plan:
        """Return a stream with a random scope.

        A cluster stream is limited to the workload's databases unless ``whole`` is true, since
        documents that other workloads change may be looked up with different results.
        """
        stages: Pipeline = [{"$changeStream": options}]
        if database == "admin" and not whole:
            stages.append({"$match": {"ns.db": {"$in": list(self._databases)}}})
        command = {"aggregate": target, "pipeline": stages, "cursor": {}}
        return Plan("", database, command)

    def _from_start(self, command: dict[str, Any]) -> dict[str, Any]:
        options = {**command["pipeline"][0]["$changeStream"], "startAtOperationTime": self._start}
        return {**command, "pipeline": [{"$changeStream": options}, *command["pipeline"][1:]]}
