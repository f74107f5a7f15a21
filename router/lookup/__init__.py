"""Looking up the documents of ``fullDocument: "updateLookup"`` (docs/design.md, section 14)."""
