"""Normalization statistics: openpi's `norm_stats.json`, LeRobot's normalizer files and `stats.json`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from edgewright.checkpoint.folder import inside
from edgewright.checkpoint.policies.keys import Keys, numbers
from edgewright.checkpoint.policies.options import option
from edgewright.checkpoint.safetensors import read_safetensors
from edgewright.checkpoint.tensor import FLOATING
from edgewright.checkpoint.text import read_json_object, shown
from edgewright.errors import ConfigError
from edgewright.runtime.policy.spec import NEEDED, STATISTICS, Norm, Statistics, Vector, impossible

NORM_STATS = "norm_stats.json"
#: Statistics of LeRobot that no way of normalising uses.
NO_EFFECT = frozenset({"count", "q10", "q50", "q90"})
MAX_DIMENSION = 4096
Group = dict[str, Vector]
Groups = dict[str, Group]


def find_openpi(folder: Path, asked: str | Path | None) -> Path:
    """Return the statistics file below `assets/`; `asked` is the id of one of several.

    Raises ConfigError if there is none, or no such one, or if there are several and none is asked for.
    """
    files = {path.parent.relative_to(folder / "assets").as_posix(): path for path in _below(folder / "assets")}
    if not files:
        raise ConfigError(
            f"{folder} has no normalization statistics (assets/<id>/{NORM_STATS}), without which actions have no"
            f" meaning; copy the assets folder of the training, or give the file with the {option('statistics')}."
        )
    ids = ", ".join(sorted(map(shown, files)))
    if asked is not None:
        if str(asked) not in files:
            raise ConfigError(f"{folder} has no statistics {shown(str(asked))}; it has those of {ids}.")
        return inside(folder, files[str(asked)].relative_to(folder).as_posix())
    if len(files) > 1:
        raise ConfigError(
            f"{folder} has statistics of several robots ({ids}); say which one to use with the {option('statistics')}."
        )
    return inside(folder, next(iter(files.values())).relative_to(folder).as_posix())


def _below(folder: Path) -> list[Path]:
    """Return the statistics files below a folder, at most four levels deep; linked folders are not entered."""
    found = []
    for place, folders, names in os.walk(folder):
        if len(Path(place).relative_to(folder).parts) >= 4:
            folders.clear()
        if NORM_STATS in names:
            found.append(Path(place) / NORM_STATS)
    return sorted(found)


def read_any(path: Path) -> Groups:
    """Return the statistics of "state" and "actions" in a file of either project, told by its content.

    Raises ConfigError if it holds none, or other keys; a CheckpointError if it can't be read.
    """
    if path.suffix == ".safetensors":
        return read_normalizer(path)
    data = read_json_object(path)
    if "norm_stats" in data:
        return read_openpi(path)
    if {"observation.state", "action"} <= data.keys():
        return {
            "state": _group(Keys(data["observation.state"], f"{path}, observation.state,")),
            "actions": _group(Keys(data["action"], f"{path}, action,")),
        }
    raise ConfigError(
        f"{path} holds neither openpi's norm_stats nor a LeRobot dataset's statistics of observation.state and action;"
        f" give a {NORM_STATS} or a stats.json."
    )


def read_openpi(path: Path) -> Groups:
    """Return the statistics in openpi's file."""
    outer = Keys(read_json_object(path), str(path))
    keys = outer.inner("norm_stats")
    outer.finish()
    groups = {name: _group(keys.inner(name)) for name in ("state", "actions")}
    keys.finish()
    return groups


def read_normalizer(path: Path) -> Groups:
    """Return the statistics in the state file of LeRobot's normalizer; those of other features are not used."""
    groups: Groups = {"state": {}, "actions": {}}
    for name, tensor in read_safetensors(path).items():
        feature, _, key = name.rpartition(".")
        group = {"observation.state": "state", "action": "actions"}.get(feature)
        if group is None or key in NO_EFFECT:
            continue
        where = f"{path}, {shown(name)},"
        if key not in STATISTICS:
            raise ConfigError(f"{where} is not a known statistic ({', '.join(STATISTICS)}); compute them again.")
        if len(tensor.shape) != 1 or not 0 < tensor.shape[0] <= MAX_DIMENSION or tensor.dtype not in FLOATING:
            raise ConfigError(
                f"{where} is {tensor.dtype}{list(tensor.shape)} and not a vector of floats; compute them again."
            )
        values = tensor.read().astype(np.float64)
        if not np.isfinite(values).all():
            raise ConfigError(f"{where} holds a number that is not finite; compute the statistics again.")
        groups[group][key] = values
    return groups


def _group(keys: Keys) -> Group:
    """Return the vectors of one group, all of one length."""
    group: Group = {}
    for name, value in keys.items():
        if name in NO_EFFECT or value is None:
            continue
        if name not in STATISTICS:
            raise ConfigError(
                f"{keys.where} has the key {shown(name)}, which is not a known statistic ({', '.join(STATISTICS)});"
                " compute the statistics again."
            )
        group[name] = np.array(numbers(value, f"{keys.where} {name}"), np.float64)
    return group


def fit(
    groups: Mapping[str, Mapping[str, Vector]], dims: Mapping[str, int], norms: Mapping[str, Norm], source: str
) -> Statistics:
    """Return the statistics of the first `dims` numbers of "state" and "actions", those that `norms` need among them.

    Raises ConfigError if one that is needed is missing, if they are of another number of dimensions, or if no data has
    such statistics.
    """
    result: dict[str, Group] = {}
    for name, dim in dims.items():
        group = groups.get(name, {}) if dim else {}
        missing = [key for key in NEEDED[norms[name]] if key not in group] if dim else []
        if missing:
            raise ConfigError(
                f"{source} has no {' and '.join(missing)} of {name}, which {norms[name]} normalization needs; give a"
                f" file that has them with the {option('statistics')}."
            )
        lengths = sorted({vector.size for vector in group.values()})
        if lengths and (len(lengths) > 1 or lengths[0] != dim):
            raise ConfigError(
                f"{source} has statistics of {' and '.join(map(str, lengths))} numbers for {name}, but the policy has"
                f" {dim}: they are those of another robot, give the ones the policy was trained with."
            )
        if wrong := impossible(group):
            raise ConfigError(
                f"{source} has statistics of {name} that no data has ({wrong}); compute them again, or give others"
                f" with the {option('statistics')}."
            )
        result[name] = {key: np.array(vector) for key, vector in group.items()}
    return Statistics(result["state"], result["actions"])


def length(group: Mapping[str, Vector]) -> int:
    """Return how many numbers a group's statistics are of, 0 if there are none."""
    return max((vector.size for vector in group.values()), default=0)


def used(group: Mapping[str, Vector]) -> int:
    """Return how many numbers are left when those at the end that are always zero (padding) are left off."""
    size = length(group)
    if any(vector.size != size for vector in group.values()):
        return size
    # Quantiles of numbers that are all zero are the edges of a histogram's bin, which are not quite zero.
    zero = np.all([np.abs(vector) < 1e-8 for vector in group.values()], axis=0)
    return int(np.flatnonzero(~zero)[-1]) + 1 if not zero.all() else 0


def cut(group: Mapping[str, Vector], dim: int) -> Group:
    """Return the statistics of the first `dim` numbers."""
    return {key: vector[:dim] for key, vector in group.items()}
