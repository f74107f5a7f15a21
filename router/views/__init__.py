"""What one client reads of a merged stream: a namespace, a filter, an end."""
