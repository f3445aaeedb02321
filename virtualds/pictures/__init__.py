"""Pictures: plain numbers and names as SVG and HTML, escaped, for light and dark pages."""
