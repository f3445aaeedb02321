"""Reports and pictures as text, HTML and SVG, for light and dark pages."""
