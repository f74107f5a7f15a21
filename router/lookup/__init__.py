"""Looking up the documents of ``fullDocument: "updateLookup"`` (docs/lookups.md)."""
