"""Sets up and tears down volumes that process extensions provide: the directory is the agent's, its content the extension's.

The agent makes the directory below the pod's own, and what is in it is removed with the pod. It never follows a link there, and changes
nothing in it while the pod lives. What the process is asked is in `extension_calls.py`.
"""

from __future__ import annotations

from pykubelet.edges.host.fs import beneath
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.provide.volumes.directories import VolumeDirs, delete_volume
from pykubelet.provide.volumes.flex.plan import EXTENSION, ExtensionPlan
from pykubelet.provide.volumes.kind import CallContext, TransientError, VolumesError

#: Seconds for the removal of what an extension has put into a volume.
REMOVE_S = 120.0


async def set_up_by_extension(plan: ExtensionPlan, context: CallContext) -> None:
    """Make the volume's directory, and have the extension set it up. VolumesError; NotYetError while it is at it."""
    extension = context.extensions.get(plan.extension)
    if extension is None:
        raise TransientError(f"the driver {EXTENSION}{plan.extension} is not there")
    await context.blocking(lambda: _make(plan))
    await extension.set_up(plan)
    await context.blocking(lambda: _check(plan))


def _make(plan: ExtensionPlan) -> None:
    beneath.make_dirs(plan.note, 0o750)
    beneath.make_dirs(plan.directory.parent, 0o750)
    beneath.make_dirs(plan.directory, 0o777)


def _check(plan: ExtensionPlan) -> None:
    """Refuse a volume whose directory was replaced: containers would get what a link leads to."""
    found = beneath.stat_file(plan.directory)
    if found is None or not found.is_dir:
        what = "removed" if found is None else f"replaced by a {found.kind}"
        raise VolumesError(f"extension {plan.extension}: the directory of the volume was {what}")


async def tear_down_by_extension(dirs: VolumeDirs, name: str, context: CallContext) -> bool:
    """Have the extension tear a volume down, then remove what is left of it. False: it is no volume of an extension.

    Without the extension, the volume is unmounted and removed all the same.
    """
    extension = context.extensions.get(name)
    if extension is None and not await context.blocking(lambda: beneath.stat_file(dirs.private) is not None):
        return False
    if extension is not None:
        await extension.tear_down(dirs)
    await context.blocking(lambda: _remove(dirs), REMOVE_S)
    return True


def _remove(dirs: VolumeDirs) -> None:
    found = beneath.stat_file(dirs.path)
    if found is not None and not found.is_dir:  # a link in its place, behind which nothing is unmounted
        beneath.remove_file(dirs.path)
    try:
        delete_volume(dirs)
    except HostError:
        beneath.make_dirs(dirs.private, 0o750)  # the next try must know, too, what it is
        raise
