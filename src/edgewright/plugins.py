"""Parts of the toolkit that other installed packages bring: targets, dialects and engines, found by entry point.

A package names them in its metadata, under the groups below; nothing of it is imported before one is asked for by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from edgewright.errors import EdgewrightError, PluginError, first_line

#: Back ends (`edgewright.targets.backend.Backend`), lowerings (a function of a stage), and what opens an engine
#: (`edgewright.runtime.engine.Opener`).
TARGETS, DIALECTS, ENGINES = "edgewright.targets", "edgewright.dialects", "edgewright.engines"
#: Modules beside which YAML files of platforms lie (`edgewright.targets.platform`).
PLATFORMS = "edgewright.platforms"
#: So many names are all told when one is unknown.
_FEW = 12


def plugin_names(group: str) -> tuple[str, ...]:
    """Return the names that installed packages give in a group, sorted."""
    return tuple(sorted({entry.name for entry in metadata.entry_points(group=group)}))


def package_of(group: str, name: str) -> str:
    """Return the name of the package that brings a plug-in; the plug-in's own where none does."""
    return next((entry.dist.name for entry in metadata.entry_points(group=group, name=name) if entry.dist), name)


def load_plugin(group: str, name: str) -> Any:
    """Import and return what a package offers under a name, None where no package does.

    Raises PluginError where two packages offer it, or where it can't be imported.
    """
    found = list(metadata.entry_points(group=group, name=name))
    if not found:
        return None
    if len({entry.value for entry in found}) > 1:
        packages = " and ".join(sorted({entry.dist.name if entry.dist else entry.value for entry in found}))
        raise PluginError(f"Both {packages} bring the {group.rpartition('.')[2]} {name}: uninstall one of them.")
    try:
        return found[0].load()
    except (Exception, SystemExit) as error:
        package = found[0].dist.name if found[0].dist else found[0].value
        raise PluginError(
            f"The package {package}, which brings {name}, can't be imported ({first_line(error)}): update it, or "
            "uninstall it."
        ) from None


@contextmanager
def defects_named(whose: str, when: str = "", kind: type[EdgewrightError] = PluginError) -> Iterator[None]:
    """Let a package's own code run in the block; what that raises is an error of `kind` then, which names the package.

    Errors of the toolkit go through as they are. `when` says what was asked of it. A package that would end the whole
    program (`sys.exit`) has failed as well.
    """
    try:
        yield
    except EdgewrightError:
        raise
    except (Exception, SystemExit) as error:
        raise kind(
            f"{whose} failed {when}{' ' if when else ''}({type(error).__name__}: {first_line(error)}): update the "
            "package, or report it to those who made it."
        ) from error


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint at the names nearest to an unknown one, and at all of them where they are few or none is near."""
    every = list(dict.fromkeys(known))
    begun = [other for other in every if len(name) > 1 and other.startswith(name)]
    near = (begun or difflib.get_close_matches(name, every, n=3, cutoff=0.5))[:3]
    hint, all_names = f"did you mean {' or '.join(near)}?", f"known are {', '.join(every)}"
    if not near:
        return f"{all_names}."
    return hint if len(every) > _FEW else f"{all_names}; {hint}"
