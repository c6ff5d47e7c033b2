"""Web pages with a scene inside, which open from disk."""
