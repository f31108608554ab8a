"""Who a request acts as, by its headers of impersonation. Pure.

A client may act as another one in one of five ways, which are tried in order. Four of them (KEP-5284) also ask whether the client may
do just this request as the other one: the verb `impersonate-on:MODE:VERB` of the request's resource, beside `impersonate:MODE` of the
other one. The last one, `impersonate`, allows all requests. Source: "User impersonation"; texts are the API server's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote

from pykubelet.base.api.labels import dns_subdomain_errors
from pykubelet.base.kit.values import Value, field, replace
from pykubelet_local_api.access.authenticate import split_account
from pykubelet_local_api.access.authorize import check, refusal
from pykubelet_local_api.access.covers import go_list
from pykubelet_local_api.access.rbac import ANONYMOUS, AUTHENTICATED, MASTERS, UNAUTHENTICATED, AccessAttributes
from pykubelet_local_api.errors import StatusError, bad_request
from pykubelet_local_api.view import RequestUser, View

_EXTRA = "impersonate-extra-"
_AUTHENTICATION = "authentication.k8s.io"
_NODE, _NODES, _NODE_NAME = "system:node:", "system:nodes", "authentication.kubernetes.io/node-name"
#: A request may impersonate so many groups and extra values.
MOST_IMPERSONATED = 200


class WantedUser(Value):
    """What the headers ask for."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_name_only(self) -> bool:
        """Whether nothing but the name is asked for."""
        return not (self.groups or self.uid or self.extra)

    @property
    def node(self) -> str:
        """The node that it is; "" if it is none."""
        name = self.name.removeprefix(_NODE)
        return name if self.name.startswith(_NODE) and not dns_subdomain_errors(name) else ""


def impersonated(
    user: RequestUser, headers: Mapping[str, Sequence[str]], view: View, request: AccessAttributes | None = None
) -> RequestUser:
    """The user that the request acts as; `user` itself without headers of impersonation.

    `headers`: the values of each header, by lower-case name: a value is one group, whatever is in it. `request`: what `user` wants
    to do. Raises StatusError: 400 for headers that do not belong together, 403 if the user may not act as the other one.
    """
    wanted = _wanted(headers)
    if wanted is None:
        return user
    first: StatusError | None = None
    for mode in _modes(user, wanted) if request is not None else ():
        try:
            assert request is not None
            return _in_mode(user, wanted, mode, request, view)
        except StatusError as error:
            first = first or error
    try:
        for attributes in _impersonations(user, wanted, "impersonate", "", split_account(wanted.name)):
            check(attributes, view)
    except StatusError as error:
        raise first or error from None
    return _acting(wanted, wanted.groups)


def _wanted(headers: Mapping[str, Sequence[str]]) -> WantedUser | None:
    name, uid = (next(iter(headers.get(key, ())), "") for key in ("impersonate-user", "impersonate-uid"))
    groups = tuple(headers.get("impersonate-group", ()))
    extra: dict[str, tuple[str, ...]] = {}
    for key, values in headers.items():
        if key.startswith(_EXTRA):
            key = unquote(key.removeprefix(_EXTRA))
            extra[key] = (*extra.get(key, ()), *values)
    if not name:
        if uid or groups or extra:
            raise bad_request(f"requested {_go_user(uid, groups, extra)} without impersonating a user name")
        return None
    if len(groups) + sum(map(len, extra.values())) > MOST_IMPERSONATED:
        raise bad_request(f"a request may impersonate at most {MOST_IMPERSONATED} groups and extra values")
    return WantedUser(name, groups, uid, extra)


def _modes(user: RequestUser, wanted: WantedUser) -> Iterator[str]:
    """The constrained ways that there are to this user."""
    account = split_account(wanted.name)
    if wanted.is_name_only and wanted.node:
        if split_account(user.name) is not None and user.extra.get(_NODE_NAME) == (wanted.node,):
            yield "associated-node"
        yield "arbitrary-node"
    if wanted.is_name_only and account is not None:
        yield "serviceaccount"
    if not wanted.node and account is None:
        yield "user-info"


def _in_mode(user: RequestUser, wanted: WantedUser, mode: str, request: AccessAttributes, view: View) -> RequestUser:
    check(replace(request, verb=f"impersonate-on:{mode}:{request.verb}"), view)
    verb = f"impersonate:{mode}"
    for key in wanted.extra:
        host, _, path = key.partition("/")
        if not path or dns_subdomain_errors(host):
            why = f'extra.key: Invalid value: {go_list([key])[1:-1]}: must be a domain-prefixed path (such as "acme.io/foo")'
            attributes = AccessAttributes(user, verb, _AUTHENTICATION, "userextras")
            raise refusal(attributes, f"impersonating an invalid key in extra is not allowed: {why}")
    for attributes in _impersonations(user, wanted, verb, _AUTHENTICATION, split_account(wanted.name)):
        if attributes.resource == "groups" and attributes.name == MASTERS:
            raise refusal(attributes, "impersonating the system:masters group is not allowed")
        if attributes.resource == "users" and wanted.node:
            name = "*" if mode == "associated-node" else wanted.node
            attributes = replace(attributes, resource="nodes", name=name)
        check(attributes, view)
    return _acting(wanted, (_NODES,) if wanted.node else wanted.groups)


def _acting(wanted: WantedUser, groups: tuple[str, ...]) -> RequestUser:
    """The other user, with the groups that all users have."""
    account = split_account(wanted.name)
    if account is not None and not groups:
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{account[0]}")
    added = UNAUTHENTICATED if wanted.name == ANONYMOUS else AUTHENTICATED
    known = {UNAUTHENTICATED} if wanted.name == ANONYMOUS else {AUTHENTICATED, UNAUTHENTICATED}
    return RequestUser(wanted.name, groups if known & set(groups) else (*groups, added), wanted.uid, wanted.extra)


def _impersonations(
    user: RequestUser, wanted: WantedUser, verb: str, group: str, account: tuple[str, str] | None
) -> Iterator[AccessAttributes]:
    """What the user must be allowed to do. `group`: the API group of users and groups."""
    if account is not None:
        yield AccessAttributes(user, verb, group, "serviceaccounts", namespace=account[0], name=account[1])
    else:
        yield AccessAttributes(user, verb, group, "users", name=wanted.name)
    if wanted.uid and group:
        yield AccessAttributes(user, verb, _AUTHENTICATION, "uids", name=wanted.uid)
    for name in wanted.groups:
        yield AccessAttributes(user, verb, group, "groups", name=name)
    for key, values in wanted.extra.items():
        for value in values:
            yield AccessAttributes(user, verb, _AUTHENTICATION, "userextras", key, name=value)
    if wanted.uid and not group:
        yield AccessAttributes(user, verb, _AUTHENTICATION, "uids", name=wanted.uid)


def _go_user(uid: str, groups: Sequence[str], extra: Mapping[str, Sequence[str]]) -> str:
    listed = f"[]string{{{', '.join(go_list([group])[1:-1] for group in groups)}}}" if groups else "[]string(nil)"
    pairs = ", ".join(
        f"{go_list([key])[1:-1]}:[]string{{{', '.join(go_list([value])[1:-1] for value in values)}}}"
        for key, values in sorted(extra.items())
    )
    more = f"map[string][]string{{{pairs}}}" if extra else "map[string][]string(nil)"
    return f'&user.DefaultInfo{{Name:"", UID:{go_list([uid])[1:-1]}, Groups:{listed}, Extra:{more}}}'
