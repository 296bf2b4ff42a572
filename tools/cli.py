"""The command line: the person's own client."""
