"""The feed: a plain socket that sends one line of extended JSON for each event."""
