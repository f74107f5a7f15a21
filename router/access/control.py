"""Authorization as the process has it: the users, the signed times, and new clients' logins."""

from router.access.login import Login
from router.access.signing import SignedTimes
from router.access.users import REFRESH_SECONDS, User, Users
from router.catalog.cluster import Cluster
from router.client_limits import ClientLimits
from router.fair_limit import FairLimit
from router.privileges import CLUSTER

_ADVANCE = "advanceClusterTime"


class AccessControl:
    """The users, signed times and logins of a router whose clients have to log in.

    ``await close()`` ends its tasks. Create it in a running loop.

    Args:
        cluster: the cluster, which holds the users and the keys of cluster times.
        limits: the limits of clients.
        refresh: seconds between two readings of the users' privileges.
    """

    def __init__(
        self,
        cluster: Cluster,
        limits: ClientLimits | None = None,
        *,
        refresh: float = REFRESH_SECONDS,
    ) -> None:
        self._cluster = cluster
        self._limits = limits or ClientLimits()
        self.logins_in_progress = FairLimit.of_logins(self._limits.logins_in_progress)
        self.users = Users(cluster, refresh=refresh)
        self.times = SignedTimes(cluster)

    def login(self, peer: str) -> Login:
        """Return the state of a new client's login; ``peer`` is its address and port."""
        return Login(
            self.users,
            self._cluster,
            peer,
            in_progress=self.logins_in_progress,
            failed_delay=self._limits.failed_login_delay,
        )

    @staticmethod
    def may_advance_clock(user: User) -> bool:
        """Return whether a user's cluster times are believed without a signature."""
        return user.privileges.allow(CLUSTER, _ADVANCE)

    async def close(self) -> None:
        """End the refresh of users and keys."""
        await self.users.close()
        await self.times.close()
