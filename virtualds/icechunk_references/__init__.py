"""References as Icechunk keeps them, and its library."""
