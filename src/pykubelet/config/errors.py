"""What can be wrong with a configuration: problems as values, one error to carry them all."""

from __future__ import annotations

from pykubelet.base.kit.values import Value


class Problem(Value):
    """One thing wrong. `field`: dotted path in KubeletConfiguration (or a flag). `text`: the message."""

    field: str
    text: str


class ConfigError(Exception):
    """The configuration cannot be used. `problems` has one line of text for each thing wrong; at least one."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
