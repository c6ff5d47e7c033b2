"""Training of Gaussians on photographs: `Trainer`, its parameters, losses and files."""
