"""What the logins of all clients share."""

from router.access.signing import SignedTimes
from router.access.users import Users
from router.catalog.cluster import Cluster
from router.limits.client_limits import ClientLimits
from router.limits.fair_limit import FairLimit
from router.tasks import OwnedTasks
from router.tls.certificates import Certificates


class LoginResources:
    """The users, signed times and logins of a router whose clients have to log in.

    The ``cluster`` holds the users and the keys of cluster times. ``tasks`` keep both current; they
    read the users again every ``refresh`` seconds. ``certificates`` are the router's own.
    """

    def __init__(
        self,
        tasks: OwnedTasks,
        cluster: Cluster,
        limits: ClientLimits,
        certificates: Certificates | None,
        *,
        refresh: float,
    ) -> None:
        self.certificates = certificates
        self.cluster = cluster
        self.in_progress = FairLimit(limits.logins_in_progress)
        self.failed_delay = limits.failed_login_delay
        """Seconds before a refused login is answered."""
        self.users = Users(cluster, refresh)
        self.times = SignedTimes(cluster)
        tasks.run(self.users.keep_fresh, name="users")
        tasks.run(self.times.keep_reading, name="keys")
