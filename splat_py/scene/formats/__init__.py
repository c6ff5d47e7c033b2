"""Files of Gaussians that other programs write and read, a format or a few a module; `gaussians.py` chooses."""
