"""What an archive or a set is, how its files differ, and whether references are still valid."""
