"""The measures of the family representation as the paper writes them: absolute, rows as given."""

from functools import partial

from theodolite.measures import representation

alignment_area = partial(representation.alignment_area, rows="none", normalized=False)
alignment_curve = partial(representation.alignment_curve, rows="none", scale="absolute")
area_from_projections = partial(representation.area_from_projections, normalized=False)
curve_from_projections = partial(representation.curve_from_projections, scale="absolute")
top_share = partial(representation.top_share, rows="none")


def routed_curve(features, targets, thresholds, route):
    """The curve by a route that the measures would choose themselves."""
    projections = representation.label_projections(features, targets, route=route)
    return curve_from_projections(projections, thresholds)
