"""Scripts and styles that pages carry inside, and the policy that admits no others."""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

__all__ = ["content_policy", "static_text"]


def content_policy(scripts: Sequence[str]) -> str:
    """A policy by which only these scripts run, and nothing is fetched."""
    digests = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    ]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def static_text(name: str) -> str:
    """A file of the report's ``static`` folder."""
    return resources.files("theodolite.report").joinpath("static", name).read_text(encoding="utf-8")
