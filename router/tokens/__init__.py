"""Resume tokens and the KeyStrings in them."""
