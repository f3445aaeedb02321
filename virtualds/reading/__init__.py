"""Reading of a selection: planning, fetching chunks, and decoding them into the result."""
