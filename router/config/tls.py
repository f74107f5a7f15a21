"""``net.tls``: TLS towards clients and towards the cluster, with mongos's names."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from router.config.problems import Section, comma_separated
from router.config.security import Secret
from shard_client.wire.tls import PROTOCOLS, TlsFiles

Mode = Literal["disabled", "allowTLS", "preferTLS", "requireTLS"]


class Tls(Section):
    """``net.tls``.

    With ``allowTLS``, clients connect with or without TLS; with ``preferTLS`` also, and the router
    itself connects with TLS; with ``requireTLS`` all connections use TLS.
    """

    mode: Mode = "disabled"
    """Which connections use TLS: none; those of clients that wish it (allowTLS); these and the
    router's own to the cluster (preferTLS); all, others are refused (requireTLS)."""
    certificate_key_file: Path | None = None
    """A PEM file with the router's certificate, those of authorities between it and the root, and
    its key. Required with TLS."""
    certificate_key_file_password: Secret | None = None
    """The password of that key, if it is encrypted."""
    cluster_file: Path | None = None
    """Another such file, whose certificate the router shows to servers."""
    cluster_password: Secret | None = None
    """The password of the key in clusterFile, if it is encrypted."""
    ca_file: Path | None = Field(default=None, alias="CAFile")
    """A PEM file with the authorities that issue the certificates of servers and, without
    clusterCAFile, of clients."""
    cluster_ca_file: Path | None = Field(default=None, alias="clusterCAFile")
    """A PEM file with the authorities that issue the certificates of clients."""
    crl_file: Path | None = Field(default=None, alias="CRLFile")
    """A PEM file with the certificates that have been revoked."""
    allow_connections_without_certificates: bool = False
    """Whether clients may do without a certificate; one that they present is checked."""
    allow_invalid_certificates: bool = False
    """Whether to check no certificates at all, for tests."""
    allow_invalid_hostnames: bool = False
    """Whether a server's certificate may be for another host."""
    disabled_protocols: str = "none"
    """TLS1_2 or TLS1_3, which are then not used; TLS 1.0 and 1.1 never are."""

    @field_validator("disabled_protocols")
    @classmethod
    def _are_protocols(cls, value: str) -> str:
        names = {*comma_separated(value)} - {"none"}
        for name in names:
            if name not in PROTOCOLS:
                raise ValueError(f"{name} is not a protocol: name some of {', '.join(PROTOCOLS)}")
        if {"TLS1_2", "TLS1_3"} <= names:
            raise ValueError("no protocol is left: TLS 1.2 and TLS 1.3 are the only ones")
        return value

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        set_here = sorted(
            field.alias or name
            for name, field in type(self).model_fields.items()
            if name in self.model_fields_set and name != "mode" and getattr(self, name)
        )
        if self.mode == "disabled":
            if set_here:
                raise ValueError(f"{set_here[0]} needs TLS: set mode to requireTLS or preferTLS")
            return self
        if self.certificate_key_file is None:
            raise ValueError(
                f"mode {self.mode} requires certificateKeyFile: a PEM file with the router's "
                "certificate and its key"
            )
        if self.cluster_file is None and self.cluster_password:
            raise ValueError("clusterFile is missing: there is a password, but no file to open")
        self._check_trust()
        return self

    def _check_trust(self) -> None:
        """Refuse settings for checks of certificates that nothing would check."""
        if self.cluster_ca_file is not None and self.ca_file is None:
            raise ValueError("clusterCAFile requires CAFile too, with which servers are checked")
        if self.ca_file is None:
            if self.crl_file is not None:
                raise ValueError("CRLFile requires CAFile: the authority that issued the list")
            if self.allow_connections_without_certificates:
                raise ValueError(
                    "allowConnectionsWithoutCertificates requires CAFile: without it, no client is "
                    "asked for a certificate"
                )
        if self.allow_invalid_certificates and self.crl_file is not None:
            raise ValueError(
                "CRLFile contradicts allowInvalidCertificates, which accepts revoked certificates"
            )

    @property
    def enabled(self) -> bool:
        """Whether clients may use TLS."""
        return self.mode != "disabled"

    @property
    def towards_cluster(self) -> bool:
        """Whether the router connects to shards, config server and upstream with TLS."""
        return self.mode in ("preferTLS", "requireTLS")

    def files(self) -> TlsFiles:
        """Return the files of enabled TLS, with the passwords of their keys."""
        assert self.certificate_key_file is not None
        return TlsFiles(
            certificate=self.certificate_key_file,
            password=_secret(self.certificate_key_file_password),
            cluster_certificate=self.cluster_file,
            cluster_password=_secret(self.cluster_password),
            ca=self.ca_file,
            cluster_ca=self.cluster_ca_file,
            crl=self.crl_file,
            connections_without_certificates=self.allow_connections_without_certificates,
            invalid_certificates=self.allow_invalid_certificates,
            invalid_hostnames=self.allow_invalid_hostnames,
            disabled=frozenset(comma_separated(self.disabled_protocols)) - {"none"},
        )

    def warnings(self) -> list[str]:
        """Return the checks that the settings turn off, one sentence each."""
        if not self.enabled:
            return []
        problems = []
        if self.allow_invalid_certificates:
            problems.append(
                "net.tls.allowInvalidCertificates is set: no certificate is checked, and anybody "
                "can pose as a server or a client"
            )
        elif self.allow_invalid_hostnames:
            problems.append(
                "net.tls.allowInvalidHostnames is set: any server with a certificate of the "
                "authority can pose as another"
            )
        if self.ca_file is None and not self.allow_invalid_certificates:
            problems.append(
                "net.tls.CAFile is not set: clients are not asked for certificates, and servers "
                "are checked with the system's authorities"
            )
        return problems


def _secret(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
