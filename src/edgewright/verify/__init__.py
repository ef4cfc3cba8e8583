"""Is a bundle right: its files, its weights, its engine; and where, when and why it is not."""

from edgewright.verify.against import verify
from edgewright.verify.report import Report
from edgewright.verify.verifier import verify_bundle

__all__ = ["Report", "verify", "verify_bundle"]
