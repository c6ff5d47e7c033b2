"""The command line; each module has a few commands."""
