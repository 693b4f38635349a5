"""Data sets that a word on the command line can name once this package is installed."""

from collections.abc import Mapping

from theodolite.data import Loader
from theodolite_papers.lab.data.ct_position import load_ct_position
from theodolite_papers.lab.data.gaussian import gaussian
from theodolite_papers.lab.data.image_sets import IMAGE_SETS, load_image_set
from theodolite_papers.lab.data.peaks import peaks

__all__ = ["LOADERS"]

# ``theodolite.data.load_data`` reads this table through an entry point.
LOADERS: Mapping[str, Loader] = {
    "gaussian": lambda _word, generator: gaussian(generator=generator),
    "peaks": lambda word, generator: peaks(word.partition("-")[2] or "ABC", generator=generator),
    "ct_position": lambda _word, generator: load_ct_position(generator=generator),
    **{name: lambda word, _generator: load_image_set(word) for name in IMAGE_SETS},
}
