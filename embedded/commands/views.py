"""Views, which are documents of ``system.views``.

Source: docs/protocol.md#events (the events that they cause).
"""

from typing import Any

from embedded.commands.request import Request
from embedded.errors import CommandError, namespace_exists
from embedded.storage.bson_values import Document
from embedded.storage.collection import Collection
from embedded.write_unit import Operation


def create_view(request: Request) -> None:
    """Create the view that ``create`` describes.

    Raises:
        CommandError: the name is taken, or the pipeline is not permitted in a view.
    """
    mongod, ns = request.mongod, request.ns
    if mongod.catalog.get(ns) is not None or mongod.catalog.view(ns) is not None:
        raise namespace_exists(ns)
    view: Document = {
        "_id": ns,
        "viewOn": request.field("viewOn", str, None),
        "pipeline": _pipeline(request),
    }
    request.unit.write(Operation(_views(request), None, view))
    mongod.catalog.views[ns] = view


def drop_view(request: Request) -> bool:
    """Drop the view of this name; return whether it existed."""
    view = request.mongod.catalog.views.pop(request.ns, None)
    if view is not None:
        request.unit.write(Operation(_views(request), view, None))
    return view is not None


def _views(request: Request) -> Collection:
    views = request.mongod.catalog.get(f"{request.database}.system.views")
    if views is None:
        views = request.mongod.create_collection(request.database, "system.views")
    return views


def _pipeline(request: Request) -> list[Any]:
    pipeline: list[Any] = request.field("pipeline", list, [])
    if pipeline and "$changeStream" in pipeline[0]:
        raise CommandError(
            167,
            "$changeStream cannot be used in a view definition",
            code_name="OptionNotSupportedOnView",
        )
    return pipeline
