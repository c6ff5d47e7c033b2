"""Training Gaussians on photographs: `Trainer`, what it optimises, its losses and its files."""
