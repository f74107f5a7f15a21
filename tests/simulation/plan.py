"""The plan of a run, drawn from its seed."""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from embedded.server_version import V6_0, V8_2, ServerVersion
from tests.simulation.network import Weather
from tests.simulation.planted import Planting, draw_plantings
from tests.simulation.watcher import Mood, Watch

_LINKS = ("cut", "cut", "cut all", "lose", "client")
_MEMBERS = ("hang", "slow", "step down", "kill cursors", "restart")
_CONFIG = ("config", "config hangs", "config hangs")
_ROUTER = ("kill router", "stop router")
_EVERYTHING = _LINKS + _MEMBERS + _CONFIG[:2] + _ROUTER

_FAULTS: dict[str, tuple[str, ...]] = {
    "calm": (),
    "links": _LINKS,
    "members": _MEMBERS,
    "config": _CONFIG,
    "router": _ROUTER + _LINKS[-1:],
    "topology": _EVERYTHING,
    "removal": (),
    "all": _EVERYTHING,
}
"""The faults that each theme allows."""

_SCOPES: tuple[tuple[str, str | int], ...] = (
    ("admin", 1), ("admin", 1), ("app", 1), ("side", 1), ("tmp", 1),
    ("app", "orders"), ("side", "items"), ("app", "notes"), ("tmp", "scratch"),
)  # fmt: skip

_FILTERS: tuple[dict[str, Any], ...] = (
    {"operationType": {"$ne": "delete"}},
    {"operationType": {"$in": ["update", "drop"]}},
    {"documentKey.k": {"$lt": 30}},
    {"documentKey.k": {"$gte": 30}},
    {"ns.coll": {"$regex": "^o"}},
)
"""Filters that the router can evaluate."""


@dataclass(frozen=True)
class WatcherPlan:
    """The plan of one client: its stream, its behaviour and its start."""

    watch: Watch
    mood: Mood
    delay: float
    from_the_start: bool
    """Whether it reads from the cluster's first write on."""


@dataclass(frozen=True)
class Plan:
    """The plan of one run."""

    theme: str
    shards: int
    server_version: ServerVersion
    weather: Weather
    parameters: dict[str, Any]
    limits: dict[str, Any]
    """Limits of streams that are no server parameters."""
    block_bytes: int
    """The size up to which batches and blocks of events are joined."""
    span: float
    """The workload's duration in seconds."""
    writers: list[int]
    """The number of steps of each application."""
    steps: list[str]
    """The administrator's steps."""
    faults: list[str]
    watchers: list[WatcherPlan] = field(default_factory=list)
    feed: Watch | None = None
    """The stream of the feed client, if there is one."""
    feed_slow: float = 0.0
    """The probability of a pause after a line."""
    sharing: dict[str, float] = field(default_factory=dict)
    """Constants that make streams move often (``tests.simulation.moves``)."""

    whim: float = 0.0
    """The probability that a planner's decision to share is not taken (the same module)."""
    transactions: float = 0.12
    """The fraction of the applications' steps that are transactions."""

    definitions: float = 0.03
    """The fraction of their other steps that drop, rename or create something."""
    planted: tuple[Planting, ...] = ()
    """Exceptions on the path from a block to its readers."""

    @property
    def calm(self) -> bool:
        """Whether no faults are injected, so that nothing at all may be left behind."""
        return not self.faults and not self.planted


def draw(chance: Random) -> Plan:
    """Draw a plan."""
    theme = chance.choice(("calm", "links", "members", "config", "router", "topology", "topology",
                           "removal", "all"))  # fmt: skip
    faults = chance.choices(_FAULTS[theme], k=chance.choice((1, 2, 3, 6))) if _FAULTS[theme] else []
    span = chance.choice((1.0, 2.0, 4.0))
    plan = Plan(
        theme=theme,
        shards=chance.choice((2, 2, 3)),
        server_version=chance.choice((V6_0, V8_2)),
        weather=_weather(chance),
        parameters=_parameters(chance),
        limits=_limits(theme, chance),
        block_bytes=300 if theme == "removal" else chance.choice((300, 3_000, 1 << 16)),
        span=span,
        writers=[chance.randrange(5, 40) for _ in range(2)],
        steps=_steps(theme, chance),
        faults=faults,
        watchers=_watchers(theme, span, chance),
        feed=_feed(chance) if chance.random() < 0.25 else None,
        feed_slow=chance.choice((0.0, 0.1)),
    )
    # Drawn from the plan itself, so that each seed keeps its other choices.
    sharing = Random(f"{plan.writers} {plan.steps}")
    plan.limits["share_scopes"] = sharing.choice(("always", "auto", "auto", "never"))
    plan.limits["share_filters"] = sharing.choice(("always", "auto"))
    # With auto, streams move to a shared one and back while they are read.
    for name in ("share_scopes_from", "share_filters_from"):
        plan.limits[name] = sharing.choice((1, 2, 3))
    plan.limits["share_filters_hold"] = sharing.choice((0.05, 0.5))
    if theme != "removal" and sharing.random() < 0.5:
        _move_often(plan, sharing)
    if theme != "removal" and sharing.random() < 0.4:
        plan = _crowd(plan, sharing)
    if theme != "removal" and sharing.random() < 0.2:
        plan = _incarnations(plan, sharing)
    if theme != "removal" and sharing.random() < 0.3:
        # A feed ends without a label; its clients are not drivers.
        plan = replace(plan, planted=draw_plantings(sharing), feed=None)
    return plan


def _move_often(plan: Plan, chance: Random) -> None:
    """Make streams begin and end to share again and again.

    Clients with different filters or scopes come and go, and a shared stream rests soon when it
    reads more than they get.
    """
    plan.limits.update(
        share=True,
        share_scopes="auto",
        share_filters="auto",
        share_scopes_from=chance.choice((2, 3)),
        share_filters_from=chance.choice((2, 3)),
        share_filters_hold=chance.choice((0.02, 0.1)),
    )
    plan.sharing.update(
        recent_events=chance.choice((5, 20)),
        bytes_of_a_scan=chance.choice((20, 300, 2000)),
        pause=chance.choice((2, 10)),
    )
    narrow = [scope for scope in _SCOPES if scope[0] != "admin"]
    scopes = [chance.choice(_SCOPES)] if chance.random() < 0.4 else narrow
    for _ in range(chance.choice((3, 4))):
        database, target = chance.choice(scopes)
        filtered = len(scopes) == 1 or chance.random() < 0.2
        watch = Watch(
            database,
            target,
            pipeline=({"$match": chance.choice(_FILTERS)},) if filtered else (),
            batch_size=chance.choice((None, 3)),
            max_time_ms=chance.choice((50, 300)),
        )
        mood = Mood(restless=chance.choice((0.0, 0.1)), slow=chance.choice((0.0, 0.05)))
        delay = chance.random() * plan.span
        plan.watchers.append(WatcherPlan(watch, mood, delay, from_the_start=False))


def _crowd(plan: Plan, chance: Random) -> Plan:
    """Make clients with different filters read one scope, and resume with events in hand.

    They leave in the middle of transactions while others drain backlogs, and move meanwhile.
    """
    _move_often(plan, chance)
    database, target = chance.choice(_SCOPES[:4])
    for filtered in chance.sample(_FILTERS, chance.choice((4, 5))):
        watch = Watch(
            database,
            target,
            pipeline=({"$match": filtered},),
            batch_size=chance.choice((None, None, 3, 50)),
            max_time_ms=chance.choice((50, 300)),
        )
        mood = Mood(
            restless=chance.choice((0.0, 0.05)),
            torn=chance.choice((0.3, 0.6)),
            slow=chance.choice((0.0, 0.1)),
            sips=chance.choice((0.2, 0.5)),
            longest_pause=2.0,
        )
        delay = chance.random() * plan.span
        plan.watchers.append(WatcherPlan(watch, mood, delay, from_the_start=chance.random() < 0.3))
    plan.limits.update(
        share_log_bytes=chance.choice((10_000, 1 << 24)),
        share_alone_bytes=1 << 20,
        share_behind=15.0,
        share_linger=1.0,
    )
    return replace(
        plan,
        span=1.0,
        whim=chance.choice((0.1, 0.3)),
        writers=[2 * steps for steps in plan.writers],
        transactions=0.5,
        block_bytes=300,
    )


def _incarnations(plan: Plan, chance: Random) -> Plan:
    """Drop what clients watch again and again, and create it on another shard."""
    for _ in range(2):
        watch = Watch("tmp", chance.choice((1, "scratch")), batch_size=chance.choice((None, 1)))
        mood = Mood(slow=chance.choice((0.0, 0.3)), longest_pause=1.0)
        plan.watchers.append(WatcherPlan(watch, mood, 0.0, from_the_start=True))
    homes = ["move home"] * chance.choice((3, 6))
    return replace(plan, definitions=0.5, steps=[*plan.steps, *homes])


def _steps(theme: str, chance: Random) -> list[str]:
    steps = ["move", "split", "move", "move primary"][: chance.randrange(5)]
    steps += ["add shard"] * chance.choice((0, 1, 1, 2))
    if theme in ("config", "topology", "removal"):
        steps += ["add shard"]
    if chance.random() < 0.1:
        steps.append("drop sharded")
    if theme in ("topology", "all") and chance.random() < 0.4:
        steps.append("new address")
    chance.shuffle(steps)
    if theme == "removal":
        steps += ["remove shard in haste", "move"]
    elif theme in ("topology", "all") and chance.random() < 0.5:
        steps.insert(chance.randrange(len(steps) + 1), "remove shard")
        steps += ["move", "add again", "move"][: chance.randrange(4)]
    return steps


def _watchers(theme: str, span: float, chance: Random) -> list[WatcherPlan]:
    plans = [_watcher(theme, span, chance) for _ in range(chance.choice((1, 2, 3, 4)))]
    if theme == "removal" or chance.random() < 0.5:
        # All watch the same, so that they share a stream.
        first = plans[0].watch
        plans = [
            replace(plan, watch=replace(first, batch_size=plan.watch.batch_size)) for plan in plans
        ]
    return plans


def _watcher(theme: str, span: float, chance: Random) -> WatcherPlan:
    if theme == "removal":
        # Resuming after a hasty removal loses events, on a real cluster too, so these never resume.
        mood = Mood(slow=chance.choice((0.0, 0.2, 0.6)), longest_pause=3.0)
        return WatcherPlan(_watch(("admin", 1), chance), mood, 0.0, from_the_start=False)
    mood = Mood(restless=chance.choice((0.0, 0.0, 0.05, 0.2)), slow=chance.choice((0.0, 0.0, 0.1)))
    return WatcherPlan(
        watch=_watch(chance.choice(_SCOPES), chance),
        mood=mood,
        delay=chance.random() ** 2 * span,
        from_the_start=chance.random() < 0.2,
    )


def _feed(chance: Random) -> Watch:
    watch = _watch(chance.choice(_SCOPES), chance)
    # A feed without invalidates has no token to start after.
    return watch if watch.database == "admin" else replace(watch, pipeline=())


def _watch(scope: tuple[str, str | int], chance: Random) -> Watch:
    database, target = scope
    options: dict[str, Any] = {}
    if chance.random() < 0.3:
        options["showExpandedEvents"] = True
    if chance.random() < 0.2:
        options["fullDocument"] = "updateLookup"
    pipeline: tuple[dict[str, Any], ...] = ()
    if chance.random() < 0.2:
        pipeline = ({"$match": {"operationType": {"$in": ["insert", "delete", "drop"]}}},)
    return Watch(
        database,
        target,
        options,
        pipeline,
        batch_size=chance.choice((None, None, 1, 3, 50)),
        max_time_ms=chance.choice((50, 300, 1000)),
    )


def _weather(chance: Random) -> Weather:
    return Weather(
        latency=chance.choice((0.0002, 0.001, 0.005, 0.03)),
        jitter=chance.choice((0.0, 0.003, 0.02)),
        chop=chance.choice((0.0, 0.05, 0.3)),
        window=chance.choice((2_000, 64_000)),
        keepalive=chance.choice((1.0, 4.0)),
    )


def _limits(theme: str, chance: Random) -> dict[str, Any]:
    limits = {
        # The shards get fewer requests than by default, since an idle second costs real time.
        "await_unknown": 0.06,
        "probe_share": chance.choice((0.0, 0.05, 1.0)),
        "probe_burst": chance.choice((0.002, 0.25)),
        "await_quiet": 0.25,
        "await_watermark": 0.005,
        "await_watermark_max": 0.05,
        "prefetch_time": chance.choice((0.5, 3.0)),
        "close_timeout": 0.8,
        "backoff_max": 0.5,
        "watermark_timeout": chance.choice((0.0, 0.5, 5.0)),
        "noop_burst": chance.choice((1.0, 5.0, 100.0)),
        "cursor_timeout": 4.0,
        "session_timeout": 5.0,
        "share": chance.random() < 0.8,
        "share_log_bytes": chance.choice((800, 10_000, 1 << 24)),
        "share_alone_bytes": chance.choice((400, 5_000, 1 << 20)),
        "share_behind": chance.choice((0.3, 2.0, 15.0)),
        "share_linger": chance.choice((0.05, 1.0)),
    }
    if theme == "removal":
        # Some clients fall behind the shared log.
        limits |= {"share": True, "share_log_bytes": 800, "share_alone_bytes": 400}
    return limits


def _parameters(chance: Random) -> dict[str, Any]:
    return {
        "connectTimeoutMs": 500,
        "openTimeoutMs": 3000,
        "replyTimeoutMs": 600,
        "failureTimeoutMs": chance.choice((500, 1500, 6000)),
        "noopWrites": chance.random() < 0.8,
        "batchTargetBytes": chance.choice((500, 5_000, 1 << 20)),
        "remoteBufferBytes": chance.choice((1_000, 20_000, 1 << 24)),
        "streamBufferBytes": chance.choice((2_000, 40_000, 1 << 26)),
    }
