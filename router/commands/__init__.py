"""Commands that the router answers itself, one module per family."""
