"""Encoders and decoders of scene files that other programs share; `gaussians.py` selects one by ending."""
