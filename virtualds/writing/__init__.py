"""Sets are made, grown, edited and copied: groups and datasets become references on disk."""
