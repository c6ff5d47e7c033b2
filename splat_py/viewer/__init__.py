"""A scene in the browser: viser serves the page, and the rasteriser draws its frames."""
