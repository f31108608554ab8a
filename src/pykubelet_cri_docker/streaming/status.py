"""The results of exec and attach, as `metav1.Status` and as text. Pure.

Source: the Kubernetes documentation of `v4.channel.k8s.io`; earlier versions have only the text of an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pykubelet.base.kit.values import Value

MAX_ERROR = 8 * 1024


class StreamResult(Value):
    """A result. `text`: "" for a success."""

    text: str
    fields: Mapping[str, object]

    def encoded(self, *, as_json: bool) -> bytes:
        """The content of the error stream."""
        return (
            json.dumps({"metadata": {}, **self.fields}, separators=(",", ":")).encode()
            if as_json
            else self.text.encode()
        )


SUCCESS = StreamResult("", {"status": "Success"})


def exit_status(code: int) -> StreamResult:
    """The result of a command that has ended with this exit code."""
    if not code:
        return SUCCESS
    text = f"command terminated with non-zero exit code: exit status {code}"
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return StreamResult(
        text, {"status": "Failure", "message": text, "reason": "NonZeroExitCode", "details": {"causes": causes}}
    )


def failure(error: str) -> StreamResult:
    """The result of a stream that the runtime could not begin or continue."""
    error = error[:MAX_ERROR]
    text = f"Internal error occurred: {error}"
    details = {"causes": [{"message": error}]}
    return StreamResult(
        text, {"status": "Failure", "message": text, "reason": "InternalError", "details": details, "code": 500}
    )
