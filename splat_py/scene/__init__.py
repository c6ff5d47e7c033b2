"""Scenes: Gaussians, cameras, captured datasets, and the files they come in."""
