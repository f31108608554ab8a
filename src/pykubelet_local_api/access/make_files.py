"""A program that makes and renews the files of access (`authority.prepare`), for `preparing.py`, which runs it.

It reads a question from standard input, and writes how long nothing has to be done to standard output. What is wrong is on the error
output, with exit code 1.
"""

from __future__ import annotations

import sys

import msgspec

from pykubelet_local_api.access.authority import prepare
from pykubelet_local_api.access.files import AccessError
from pykubelet_local_api.access.preparing import DueSpan, Question


def main() -> int:
    """Answer one question."""
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    try:
        made = prepare(question.place, question.now)
    except AccessError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(DueSpan(made.valid_from, made.due_at)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
