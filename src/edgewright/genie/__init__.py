"""Qualcomm Genie's files: configurations and profiles, read, judged and written as its library does, without it."""

from __future__ import annotations

from edgewright.genie.config import Config, Dialog, read_config, read_dialog, write_config
from edgewright.genie.kpis import Kpis, genie_kpis, measured_kpis
from edgewright.genie.profile import Component, Event, Profile, read_profile, write_profile

__all__ = [
    "Component",
    "Config",
    "Dialog",
    "Event",
    "Kpis",
    "Profile",
    "genie_kpis",
    "measured_kpis",
    "read_config",
    "read_dialog",
    "read_profile",
    "write_config",
    "write_profile",
]
