"""The operator's configuration: settings, start parameters, the form of the log."""
