"""`splat selftest`: every kernel on a device, against float64 results that travel with the package."""
