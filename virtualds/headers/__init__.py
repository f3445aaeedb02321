"""What files say of themselves: where their values lie, and of what kind they are."""
