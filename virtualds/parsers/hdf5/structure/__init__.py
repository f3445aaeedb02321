"""Parsers of the structure of HDF5 files from bytes.

Functions that take a file raise `FormatError` if it is damaged, and `DeclinedError` if it has an
unknown form. Parsers of messages, which do not know the file, raise `MessageError` and
`UnknownFormError` instead; functions of rows raise `RowsError` and `UnknownRowsError`, which name
the files.
"""
