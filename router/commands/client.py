"""A client's connection, as the commands see it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from router.access.login import Login
from router.privileges import User
from router.upstream.server_link import Reachable, ServerLink


@dataclass(slots=True)
class Client:
    """One client connection as the commands see it.

    ``is_worker`` is true if the client is another worker of this router, which asks for one of its
    clients or for itself; it is answered from this process alone, and nothing is passed on.
    ``is_local`` is true if the client connects from this machine, over a loopback address.
    ``login`` is None if clients do not log in, and for workers.
    """

    connection_id: int
    peer: str
    metadata: Mapping[str, Any] | None = None
    greeted: bool = False
    is_worker: bool = False
    is_local: bool = False
    links: dict[Reachable, ServerLink] = field(default_factory=dict)
    login: Login | None = None

    @property
    def host(self) -> str:
        """The client's address, without the port."""
        return self.peer.rpartition(":")[0] or self.peer

    @property
    def user(self) -> User | None:
        """The user that is logged in; None without authorization, and for workers."""
        return None if self.login is None else self.login.user

    @property
    def label(self) -> str:
        """The client's address with its port, and its application's name if it has sent one."""
        application = (self.metadata or {}).get("application")
        name = application.get("name") if isinstance(application, Mapping) else None
        return f"{self.peer} {name}" if name else self.peer

    def link_to(self, server: Reachable) -> ServerLink:
        """Return this client's own link to another server, which connects on first use."""
        return self.links.setdefault(server, ServerLink(server))

    def cut_links(self) -> None:
        """Cut the client's connections to other servers, which then end its running commands."""
        for link in self.links.values():
            link.abort()
        if self.login is not None:
            self.login.close()
