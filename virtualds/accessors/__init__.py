"""The accessors ``ds.virtual`` and ``tree.virtual``."""
