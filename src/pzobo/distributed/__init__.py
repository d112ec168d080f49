"""How do many processes do the work of one? Ranks, what is split over them, and what crosses the wire."""

from pzobo.distributed.ranks import join

__all__ = ["join"]
