"""The feed: a plain socket that gives one line of extended JSON for each event."""
