"""Whether the rights of one user cover those that a role would give. Pure.

Each combination of verb, group, resource and name of a rule is looked up by four sets of rules, which are kept as bits: of those rules
only that are about the same. So the cost is linear in the rules that a user has, and only what is missing is enumerated, up to a limit.
Source: "Using RBAC Authorization", privilege escalation prevention.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import islice, product
from operator import and_

from pykubelet.base.manifests.validation.errors import show
from pykubelet_local_api.access.rbac import Rule, url_covers

#: Missing rights that a message lists.
MOST_LISTED = 500
#: A rule whose values differ in more ways counts as not covered.
MOST_COMBINATIONS = 20_000
_Masks = dict[str, int]


class _Held:
    """Rules that a user has, by what they are about: for each value the set of rules with it, as bits."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._verbs: _Masks = defaultdict(int)
        self._groups: _Masks = defaultdict(int)
        self._resources: _Masks = defaultdict(int)
        self._names: _Masks = defaultdict(int)
        self._urls: _Masks = defaultdict(int)
        self._unnamed = 0
        self._patterns: _Masks = defaultdict(int)
        for number, rule in enumerate(dict.fromkeys(rules)):
            bit = 1 << number
            for masks, values in (
                (self._verbs, rule.verbs), (self._groups, rule.groups), (self._resources, rule.resources),
                (self._names, rule.names), (self._urls, rule.urls),
            ):  # fmt: skip
                for value in values:
                    masks[value] |= bit
            for url in rule.urls:
                if url.endswith("*"):
                    self._patterns[url] |= bit
            if not rule.names:
                self._unnamed |= bit

    def verb(self, verb: str) -> int:
        return self._verbs.get(verb, 0) | self._verbs.get("*", 0)

    def group(self, group: str) -> int:
        return self._groups.get(group, 0) | self._groups.get("*", 0)

    def resource(self, resource: str) -> int:
        found = self._resources.get(resource, 0) | self._resources.get("*", 0)
        _, slash, subresource = resource.partition("/")
        return found | self._resources.get(f"*/{subresource}", 0) if slash else found

    def name(self, name: str) -> int:
        return self._names.get(name, 0) | self._unnamed if name else self._unnamed

    def url(self, url: str) -> int:
        found = self._urls.get(url, 0)
        for pattern, bits in self._patterns.items():
            if url_covers(pattern, url):
                found |= bits
        return found & self._unnamed


def is_covered(rule: Rule, has: Iterable[Rule]) -> bool:
    """Whether everything that the rule allows is allowed by others."""
    return next(_uncovered(rule, _Held(_about([rule], has))), None) is None


def missing_rights(wanted: Iterable[Rule], has: Iterable[Rule]) -> list[str]:
    """What of the rules is not held, one text for each resource, sorted; at most MOST_LISTED."""
    rules = list(wanted)
    held = _Held(_about(rules, has))
    missing = list(islice((part for rule in rules for part in _uncovered(rule, held)), MOST_LISTED))
    return sorted({compact_text(rule) for rule in _compacted(missing)})


def _about(wanted: Sequence[Rule], has: Iterable[Rule]) -> Iterator[Rule]:
    """The rules that may cover a part of those: a user with thousands of rules often gives one of them."""
    verbs = {"*"}.union(*(rule.verbs for rule in wanted))
    groups = {"*"}.union(*(rule.groups for rule in wanted))
    names = set[str]().union(*(rule.names for rule in wanted))
    resources = {"*"}.union(*(rule.resources for rule in wanted))
    resources |= {f"*/{resource.partition('/')[2]}" for resource in resources if "/" in resource}
    has_urls = any(rule.urls for rule in wanted)
    for rule in has:
        if verbs.isdisjoint(rule.verbs):
            continue
        is_about = not (groups.isdisjoint(rule.groups) or resources.isdisjoint(rule.resources))
        if (is_about and (not rule.names or not names.isdisjoint(rule.names))) or (has_urls and rule.urls):
            yield rule


def _uncovered(rule: Rule, held: _Held) -> Iterator[Rule]:
    verbs = [(verb, held.verb(verb)) for verb in rule.verbs]
    groups = [(group, held.group(group)) for group in rule.groups]
    resources = [(resource, held.resource(resource)) for resource in rule.resources]
    names = [(name, held.name(name)) for name in rule.names or ("",)]
    urls = [(url, held.url(url)) for url in rule.urls]
    if not _all_covered(groups, resources, verbs, names):
        for (group, a), (resource, b), (verb, c), (name, d) in product(groups, resources, verbs, names):
            if not a & b & c & d:
                yield Rule((verb,), (group,), (resource,), (name,) if name else ())
    if not _all_covered(urls, verbs):
        for (url, a), (verb, b) in product(urls, verbs):
            if not a & b:
                yield Rule((verb,), urls=(url,))


def _all_covered(*sides: list[tuple[str, int]]) -> bool:
    """Whether each combination of one value of each side is in a common rule. Values of the same rules count once."""
    distinct = [{mask for _, mask in side} for side in sides]
    combinations = 1
    for masks in distinct:
        combinations *= len(masks)
    if combinations > MOST_COMBINATIONS:
        return False
    return all(reduce(and_, masks) for masks in product(*distinct))


def _compacted(rules: Iterable[Rule]) -> list[Rule]:
    """Rules of the same resource as one rule, with all verbs."""
    verbs: dict[Rule, list[str]] = {}
    alone = []
    for rule in rules:
        if rule.urls:
            alone.append(rule)
        else:
            verbs.setdefault(Rule((), rule.groups, rule.resources, rule.names), []).extend(rule.verbs)
    return alone + [Rule(tuple(found), key.groups, key.resources, key.names) for key, found in verbs.items()]


def compact_text(rule: Rule) -> str:
    """A rule as messages show it: `{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}`."""
    parts = (
        ("APIGroups", rule.groups), ("Resources", rule.resources), ("NonResourceURLs", rule.urls),
        ("ResourceNames", rule.names), ("Verbs", rule.verbs),
    )  # fmt: skip
    return "{" + ", ".join(f"{name}:{go_list(values)}" for name, values in parts if values) + "}"


def go_list(values: Iterable[str]) -> str:
    """Texts as Go prints a list of them: `["a" "b"]`."""
    return "[" + " ".join(map(show, values)) + "]"
