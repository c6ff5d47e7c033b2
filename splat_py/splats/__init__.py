"""3D Gaussian splatting: a file a stage, the public functions, training."""
