"""Everything the agent answers: kubectl, monitors and people.

`http` is the server, `gate` and `access` stand before its table of paths (`routes`, `api_routes`); `metrics`, `explain` and `page`
are the larger answers. The server is our own: it starts at once and costs no memory to speak of.
"""
