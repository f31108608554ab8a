"""Problems of a configuration as values, and the exception that carries all of them."""

from __future__ import annotations

from pykubelet.base.kit.values import Value
from pykubelet.base.model.remarks import Remark


class ConfigProblem(Value):
    """One problem. `field`: the dotted path in KubeletConfiguration, or a flag. `text`: the message."""

    field: str
    text: str


class ConfigError(Exception):
    """The configuration cannot be used. `problems`: one line of text for each problem; at least one.

    `remarks`: what is odd about its files and would not be a reason by itself.
    """

    def __init__(self, *problems: str, remarks: tuple[Remark, ...] = ()) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
        self.remarks = remarks
