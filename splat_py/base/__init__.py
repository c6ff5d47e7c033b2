"""The ground that all rooms stand on: files that appear whole, checked values of options, packages that load late."""
