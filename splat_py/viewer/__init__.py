"""A scene in the browser: viser carries the page, our rasteriser draws its frames."""
