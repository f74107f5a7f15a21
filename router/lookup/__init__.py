"""Looking up the documents of ``fullDocument: "updateLookup"`` (docs/design.md#lookups)."""
