"""The options of signals."""

from __future__ import annotations

from dataclasses import dataclass

from spark_sink.options import values
from spark_sink.options.names import GetOption

SIGNAL_OPTIONS = ("signalCollection", "signalFolder")
"""The names of these options."""


@dataclass(frozen=True)
class SignalOptions:
    """The channels of signals: a collection, by database and name, and a folder, by its address."""

    collection: tuple[str, str] | None = None
    folder: str | None = None

    @property
    def are_read(self) -> bool:
        """Whether signals are read at all."""
        return self.collection is not None or self.folder is not None


def signal_options(get: GetOption) -> SignalOptions:
    """Return the options of signals. Raises OptionError."""
    return SignalOptions(
        get("signalCollection", values.namespace, None), get("signalFolder", values.some_text, None)
    )
