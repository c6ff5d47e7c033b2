"""Web pages that contain a scene and open from disk."""
