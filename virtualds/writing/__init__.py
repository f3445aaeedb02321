"""Writing reference sets: creating, appending to, editing, rewriting and copying them."""
