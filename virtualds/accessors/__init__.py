"""``ds.virtual`` and ``tree.virtual``."""
