"""The agent's ports: for kubectl, for monitoring and for people.

`endpoints` is the table of all endpoints, `routes` the routing, `auth_filter` and `access` authenticate and authorize, `http` is the HTTP
server; `metrics`, `explain` and `page` are the larger answers.
"""
