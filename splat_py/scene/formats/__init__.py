"""Files of Gaussians that other programs write and read, a format a module; `files.py` chooses."""
