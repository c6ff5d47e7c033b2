"""Training Gaussians on posed photographs."""
