"""What a process counts of its clients and their commands."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """The counters of serverStatus since the process began."""

    connections: int = 0
    connections_created: int = 0
    requests: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    passed_through: int = 0
    passed_on: int = 0
    awaiting_hellos: int = 0
    user_asserts: int = 0
    errors: dict[int, int] = field(default_factory=dict)
    runs: Counter[str] = field(default_factory=Counter)
    """How often each command was run, by its official name."""
    failures: Counter[str] = field(default_factory=Counter)
    """How often the router itself answered it with an error."""
