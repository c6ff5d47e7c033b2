"""`splat selftest`: compares every kernel on a device with float64 results in the package."""
