"""Values: what rooms hand each other. Immutable, compared by what is in them, cheap to define, to make and to change.

    class Exit(Value):
        code: int
        reason: str = ""

    later = replace(exit, reason="Error")

A `Value` is what `dataclass(frozen=True, slots=True)` makes, made by msgspec: a dataclass compiles six functions as it is
defined, which is most of a start where there are hundreds, and its copies cost twenty times as much. Fields with a
default come last; `field(default_factory=...)` is for defaults made anew. What changes in place is a plain `Struct`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, dataclass_transform

from msgspec import Struct, field

if TYPE_CHECKING:
    from dataclasses import replace  # the one of which type checkers know to check the names and types of what changes
else:
    from msgspec.structs import replace

__all__ = ["Discreet", "Value", "field", "replace"]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Value(Struct, frozen=True):
    """The base of all values."""


class Discreet(Value):
    """A value that keeps the fields named in `hidden` out of its repr: logs and stories show reprs."""

    hidden: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name not in self.hidden)
        return f"{type(self).__name__}({', '.join(shown)})"
