"""Pages: one HTML file each, which opens from disk without a network."""
