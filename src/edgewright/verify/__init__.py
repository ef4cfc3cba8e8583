"""Is a bundle right: its files, its weights against the checkpoint, its engine against float32 references."""

from edgewright.verify.verifier import Report, verify_bundle

__all__ = ["Report", "verify_bundle"]
