"""Will it fit, and how fast can it be at best: counted from headers, without weights."""

from edgewright.plan.estimate import Request
from edgewright.plan.model import Model
from edgewright.plan.plan import Plan, make_plan, open_model

__all__ = ["Model", "Plan", "Request", "make_plan", "open_model"]
