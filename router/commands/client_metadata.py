"""Check the client metadata of a driver's first hello, with mongos's rules and limits.

The connection keeps the metadata until it ends. Source: MongoDB's handshake specification.
"""

from collections.abc import Mapping
from typing import Any

from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError
from shard_client.wire.documents import encode

_MOST_BYTES = 512
_MOST_NAME_BYTES = 128
_WHERE = "in the client metadata document"
_REQUIRED = {"driver": ("name", "version"), "os": ("type",)}


def check_client_metadata(metadata: object) -> Mapping[str, Any]:
    """Check and return the ``client`` document of a hello.

    Raises:
        CommandError: it is not a document or has a field of the wrong type (14), is longer than 512
            bytes (185), lacks a field (183), or has an application name above 128 bytes (184).
    """
    if not isinstance(metadata, Mapping):
        raise CommandError(
            ErrorCode.TypeMismatch, "The client metadata document must be a document"
        )
    if len(encode(metadata)) > _MOST_BYTES:
        raise CommandError(
            ErrorCode.ClientMetadataDocumentTooLarge,
            f"The client metadata document must be less then or equal to {_MOST_BYTES}bytes",
        )
    for name, value in metadata.items():
        if name == "application":
            _check_application(value)
        elif name in _REQUIRED:
            _check_fields(name, _document(name, value))
    for name in _REQUIRED:
        if name not in metadata:
            raise CommandError(
                ErrorCode.ClientMetadataMissingField,
                f"Missing required sub-document '{name}' {_WHERE}",
            )
    return metadata


def _check_application(application: object) -> None:
    name = _document("application", application).get("name", "")
    _check_text("application.name", name)
    if len(name.encode()) > _MOST_NAME_BYTES:
        raise CommandError(
            ErrorCode.ClientMetadataAppNameTooLarge,
            f"The 'application.name' field must be less then or equal to {_MOST_NAME_BYTES} bytes "
            f"{_WHERE}",
        )


def _check_fields(path: str, document: Mapping[str, Any]) -> None:
    for field in _REQUIRED[path]:
        if field not in document:
            raise CommandError(
                ErrorCode.ClientMetadataMissingField,
                f"Missing required field '{path}.{field}' {_WHERE}",
            )
        _check_text(f"{path}.{field}", document[field])


def _document(path: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CommandError(
            ErrorCode.TypeMismatch,
            f"The '{path}' field is required to be a BSON document {_WHERE}",
        )
    return value


def _check_text(path: str, value: object) -> None:
    if not isinstance(value, str):
        raise CommandError(ErrorCode.TypeMismatch, f"The '{path}' field must be a string {_WHERE}")
