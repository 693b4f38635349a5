"""The alignment zoo: hundreds of networks, five families of alignment, and which number to trust."""

from theodolite_papers.alignment_zoo.tables import Zoo, load

__all__ = ["Zoo", "load"]
