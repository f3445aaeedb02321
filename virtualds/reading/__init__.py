"""Reading: plan, fetch and decode a selection, straight into the result."""
