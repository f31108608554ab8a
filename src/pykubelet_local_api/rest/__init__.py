"""The HTTP interface: paths, formats, reads, watches and writes."""
