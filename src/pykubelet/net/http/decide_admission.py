"""Which stranger comes in next, which one has to go.

Rules:

1. Next is one from where the fewest strangers are inside: a crowd from one address delays nobody from another. Before all of
   them comes who is from where somebody was let in lately, if there are few strangers inside from there: not even a
   crowd from everywhere delays the API server.
2. Of these it is the one who came last. Under a flood somebody is not served in either order; this way who is, is served at once
   and not when he has given up.
3. When there is no place, one goes from where most are inside: of these the one who has been in for longest.
4. A handshake costs time whoever asks for it. A token bucket (`admission.py`) limits how many begin, which leaves
   everybody his place long enough to say who he is. Who is let in gives back what he took: people who are known come as fast as
   they like.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

FEW = 8


def choose_next(waiting: Sequence[str], inside: Mapping[str, int], known: Container[str] = ()) -> int:
    """The index in `waiting`, addresses in the order of arrival. `inside`: how many strangers of each address are. `known`:
    the addresses from where somebody was let in."""

    def rank(index: int) -> tuple[int, int]:
        address = waiting[index]
        there = inside.get(address, 0)
        return -1 if there < FEW and address in known else there, -index

    last_of_each = {address: index for index, address in enumerate(waiting)}
    return min(last_of_each.values(), key=rank)


def choose_leaver(order: Sequence[str], inside: Mapping[str, int]) -> int:
    """The index in `order`, the addresses of those who are inside as they came in."""
    most = max(inside.values())
    return next(index for index, address in enumerate(order) if inside[address] == most)
