"""The router's reported identity: the version of the cluster behind it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_OURS = "mergerouter"


def _mongos_build(version: str, version_array: list[int], git_version: str) -> dict[str, Any]:
    return {
        "version": version,
        "gitVersion": git_version,
        "modules": [],
        "allocator": "system",
        "javascriptEngine": "none",
        "sysInfo": "deprecated",
        "versionArray": version_array,
        "openssl": {"running": "disabled", "compiled": "disabled"},
        "bits": 64,
        "debug": False,
        "maxBsonObjectSize": 16777216,
    }


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The version that drivers see: the cluster's own, so that they use its features.

    ``known`` is false until a server of the cluster has answered.
    """

    build_info: Mapping[str, Any] = field(
        default_factory=lambda: _mongos_build("6.0.0", [6, 0, 0, 0], _OURS)
    )
    max_wire_version: int = 17
    known: bool = False

    @property
    def version(self) -> str:
        """The version as text, such as ``6.0.15``."""
        return str(self.build_info["version"])

    @property
    def order(self) -> tuple[int, list[int]]:
        """The sort key of versions: the wire version, then the version's numbers."""
        return self.max_wire_version, list(self.build_info["versionArray"])

    @classmethod
    def of_server(cls, hello: Mapping[str, Any], build_info: Mapping[str, Any]) -> "ServerIdentity":
        """Return the identity of a server of the cluster, from its hello and buildInfo."""
        version = str(build_info.get("version", "6.0.0"))
        numbers = [int(part) for part in version.split("-")[0].split(".") if part.isdigit()]
        array = build_info.get("versionArray") or [*numbers, 0, 0, 0, 0][:4]
        return cls(
            build_info=_mongos_build(
                version, list(array), str(build_info.get("gitVersion", _OURS))
            ),
            max_wire_version=int(hello.get("maxWireVersion", 17)),
            known=True,
        )
