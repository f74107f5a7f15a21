"""``security``: how the router logs in to the cluster; with it, clients have to log in, too."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import PlainSerializer, SecretStr, model_validator

from router.config.problems import Section
from shard_client.wire.authentication import (
    BY_CERTIFICATE,
    Credentials,
    read_key_file,
    read_secret_file,
)

HIDDEN = "<password>"
"""The text shown instead of a password, as by mongos."""
Secret = Annotated[SecretStr, PlainSerializer(lambda _: HIDDEN)]
"""A password in the settings."""

ClusterAuthMode = Literal["keyFile", "sendKeyFile", "sendX509", "x509"]


class Security(Section):
    """``security``: a key file, as mongos has it, and a user.

    With ``keyFile`` the router logs in to shards and config server as a member of the cluster.
    ``user`` is its login on the upstream and, without ``keyFile``, on shards and config server.
    """

    cluster_auth_mode: ClusterAuthMode = "keyFile"
    """How the router logs in to shards and config server as a member: with keyFile (keyFile,
    sendKeyFile), or with its certificate (sendX509, x509); clients then have to log in, too."""
    key_file: str | None = None
    """The cluster's key file, with which the router logs in; clients then have to log in, too."""
    user: str | None = None
    """The router's login on the upstream and, without keyFile, on shards and config server."""
    auth_source: str = "admin"
    """The database that holds this user."""
    password_file: str | None = None
    """A file with this user's password, readable by its owner only."""
    password: Secret | None = None
    """This user's password, if no file holds it."""

    @model_validator(mode="after")
    def _user_has_a_password(self) -> Self:
        passwords = (self.password is not None) + (self.password_file is not None)
        if self.user is None and passwords:
            raise ValueError("security.user is missing: a password is set without a user")
        if self.user is not None and passwords != 1:
            raise ValueError(
                "security.user requires a password: set either security.passwordFile or the "
                "environment variable MERGEROUTER_SECURITY__PASSWORD"
            )
        return self

    @property
    def authorization(self) -> bool:
        """Whether clients have to log in: the router itself does."""
        return self.key_file is not None or self.user is not None or self.by_certificate

    @property
    def by_certificate(self) -> bool:
        """Whether the router logs in as a member with its certificate."""
        return self.cluster_auth_mode in ("sendX509", "x509")

    def logins(self) -> tuple[Credentials | None, Credentials | None]:
        """Read the secrets of the router's own logins.

        Returns:
            The login on shards and config server, and that on the upstream mongos, which accepts no
            member's; None for each without authorization.

        Raises:
            ValueError: a file has open permissions or an unusable content; the message does not
                show it.
            OSError: a file cannot be read.
        """
        user = None
        if self.user is not None:
            user = Credentials(self.user, self.auth_source, (self._password(),))
        member = None if self.key_file is None else read_key_file(Path(self.key_file))
        if self.by_certificate:
            member = BY_CERTIFICATE
        return member or user, user

    def _password(self) -> str:
        if self.password is not None:
            return self.password.get_secret_value()
        assert self.password_file is not None
        text = read_secret_file(Path(self.password_file)).rstrip("\r\n")
        if not text:
            raise ValueError(f"{self.password_file} holds no password")
        return text
