"""Which bytes: chunk axes, manifests and fragments."""
