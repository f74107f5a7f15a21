"""What the operator decides: settings, start parameters, the form of the log."""
