"""Speed and cost of the agent, compared with the runtime baseline: the same CRI calls made directly, in the same run.

Never a test: figures depend on the machine. `python -m bench` prints the table; README.md keeps a reference run.
"""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]

# the test bed is a set of scripts, not part of the package
if (_tools := str(CHECKOUT / "tools")) not in sys.path:
    sys.path.insert(0, _tools)
