"""The alignment zoo: what the five families predict about hundreds of networks."""

from theodolite_papers.alignment_zoo.tables import Zoo, load

__all__ = ["Zoo", "load"]
