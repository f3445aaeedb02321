"""How many small breaks of the code the tests find: ``python -m mutation --help``."""
