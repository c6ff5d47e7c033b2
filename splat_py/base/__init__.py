"""Basics for all packages: errors, files written atomically, checked option values, lazy imports."""
