"""The structure of HDF5 files, read as bytes.

Functions that take a file raise `FormatError` where it is damaged, and `DeclinedError` where it has
a form that is not known. Parsers of messages, which know no file, raise `MessageError` and
`UnknownFormError` instead; functions of rows raise `RowsError` and `UnknownRowsError`, which name
the files at fault.
"""
