"""Reading: plan, fetch and decode a selection, directly into the result."""
