"""Which words of a pod may become a part of an SELinux context."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.api.core import SELinuxOptions
from pykubelet.base.model.selinux import options_problem

INJECTED = 's0",suid,dev,errors=panic,x="'


@pytest.mark.parametrize(
    "level",
    ["", "s0", "s15", "s0:c0", "s0:c1,c2", "s0:c0.c1023", "s0:c0.c5,c9,c11.c13", "s0-s0:c0.c1023", "s0:c1-s2:c1,c3"],
)
def test_levels_that_selinux_has(level: str) -> None:
    assert options_problem(SELinuxOptions(level=level)) == ""


@pytest.mark.parametrize(
    "level",
    [INJECTED, "s0,suid", "s0:c1,", "s0:", "s0:c1\n", "\ns0", "s0 ", "s", "S0", "s0:c1,suid", "s0\\", "s0\0", "s٠",
     "s0:" + ",".join(["c1"] * 5000)],
)  # fmt: skip
def test_any_other_level_is_refused(level: str) -> None:
    problem = options_problem(SELinuxOptions(level=level))
    assert problem.startswith("seLinuxOptions.level: Invalid value: ")
    assert len(problem) < 300 and problem.isascii() and problem.isprintable()


@pytest.mark.parametrize("name", ["user", "role", "type"])
@pytest.mark.parametrize("value", ["a:b", 'a"', "a,b", "a b", "a\n", "ä", "a" * 256])
def test_users_roles_and_types_are_words(name: str, value: str) -> None:
    assert options_problem(SELinuxOptions(**{name: value})).startswith(f"seLinuxOptions.{name}: Invalid value: ")
    assert options_problem(SELinuxOptions(**{name: "container_user.x-1"})) == ""


@given(st.text(st.sampled_from("s0123:c.,-\"' \n=\\x"), max_size=30))
def test_what_is_accepted_ends_no_option(level: str) -> None:
    if not options_problem(SELinuxOptions(level=level)):
        assert re.fullmatch(r"[sc0-9:.,-]*", level)
        assert "," not in level or level.startswith("s")
