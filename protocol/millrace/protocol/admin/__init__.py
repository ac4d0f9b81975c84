"""What the HTTP API answers, as frozen structs: the server builds them, and the command line reads them.

`data.py` turns a struct into JSON data and back. The names, the order and the nulls of an answer are those of its
fields. Imports: the standard library alone, because a struct is read by commands that start in milliseconds.
"""
