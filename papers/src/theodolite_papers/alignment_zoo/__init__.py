"""The alignment zoo: the five families on hundreds of networks, judged by what they predict."""

from theodolite_papers.alignment_zoo.tables import Zoo, load

__all__ = ["Zoo", "load"]
