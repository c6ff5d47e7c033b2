"""The command line: a few commands a file."""
