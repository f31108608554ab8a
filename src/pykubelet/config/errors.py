"""Problems of a configuration as values, and the exception that carries all of them."""

from __future__ import annotations

from pykubelet.base.kit.values import Value


class ConfigProblem(Value):
    """One problem. `field`: the dotted path in KubeletConfiguration, or a flag. `text`: the message."""

    field: str
    text: str


class ConfigError(Exception):
    """The configuration cannot be used. `problems`: one line of text for each problem; at least one."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
