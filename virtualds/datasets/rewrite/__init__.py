"""Rewriting chunks that a format of references cannot express; all other chunks stay references."""
