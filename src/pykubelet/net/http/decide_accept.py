"""Decides which waiting connection is served next, and which unauthenticated client is closed when all places are taken.

Rules:

1. Next is a connection from the address with the fewest unauthenticated clients, so that many connections from one address
   do not delay another. Addresses from which a client was recently admitted come first while they have few unauthenticated
   clients, so that even a flood from many addresses does not delay the API server.
2. Among these, the newest connection is next. In a flood, some connections are never served, in whatever order; in this order
   those that are served are served at once, before their clients give up.
3. If all places are taken, the address with the most clients loses its oldest one.
4. Each handshake costs CPU time. A token bucket (`admission.py`) limits how many begin, so that each client keeps its place
   long enough to authenticate. An admitted client gives its token back, so known clients connect at any rate.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

FEW = 8


def choose_next(waiting: Sequence[str], clients: Mapping[str, int], known: Container[str] = ()) -> int:
    """The index of the connection to serve next. `waiting`: the addresses of the connections, in the order of arrival.

    `clients`: the number of unauthenticated clients by address. `known`: the addresses from which a client was recently
    admitted.
    """

    def rank(index: int) -> tuple[int, int]:
        address = waiting[index]
        held = clients.get(address, 0)
        return -1 if held < FEW and address in known else held, -index

    last_of_each = {address: index for index, address in enumerate(waiting)}
    return min(last_of_each.values(), key=rank)


def choose_evicted(order: Sequence[str], clients: Mapping[str, int]) -> int:
    """The index of the client to close. `order`: the addresses of the clients, in the order of their handshakes."""
    most = max(clients.values())
    return next(index for index, address in enumerate(order) if clients[address] == most)
