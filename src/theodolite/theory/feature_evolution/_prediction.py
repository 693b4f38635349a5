"""Layer alignments one gradient step ahead, predicted in stages from exact to crude."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theodolite.checks import (
    require_between,
    require_count,
    require_finite,
    require_same_shape,
)
from theodolite.errors import DomainError
from theodolite.linalg.arrays import double, eps_of
from theodolite.linalg.centering import center_columns
from theodolite.linalg.ratios import ratio_or_nan
from theodolite.measures.tangent import cross_entropy_gradient
from theodolite.theory.feature_evolution._steps import gofe_step
from theodolite.theory.feature_evolution._tangent_map import TangentMap

__all__ = ["AlignmentStages", "predict_alignments"]

_CHUNK = 256  # probes whose four curvature products are held at once


@dataclass(frozen=True)
class AlignmentStages:
    """Alignment of every layer now, and its prediction after one step of gradient descent."""

    layers: tuple[str, ...]
    now: Float[Tensor, " k"]
    gofe: Float[Tensor, " k"]
    ratio: Float[Tensor, " k"]
    theta: Float[Tensor, " k"]
    trace_y: Float[Tensor, " k"]
    moments: Float[Tensor, " k"]


def predict_alignments(
    model: nn.Module,
    inputs: Tensor,
    targets: Float[Tensor, "n c"],
    step_size: float,
    *,
    loss_gradient: Float[Tensor, "n c"] | None = None,
    probes: int | None = None,
    generator: torch.Generator | None = None,
) -> AlignmentStages:
    r"""Predict every layer's alignment after one step of gradient descent.

    With :math:`H = I - \eta H_w`, :math:`H_Y = H_{\tilde Y}` and :math:`M_l` the projector on the
    parameters of layer l, the stages are

    * ``now``: :math:`A_l(t)`;
    * ``gofe``: the alignment of the features after :func:`gofe_step`;
    * ``ratio``: :math:`A_l\,|M_l H\Psi\tilde Y|^2 / |M_l\Psi\tilde Y|^2` (norm of the kernel kept);
    * ``theta``: :math:`A_l\,|M_l H H_Y\theta|^2 / |M_l H_Y\theta|^2`, equal to ``ratio`` where
      :func:`check_homogeneity` holds;
    * ``trace_y``: :math:`A_l\,\operatorname{tr}(H_Y H M_l H H_Y)/\operatorname{tr}(H_Y M_l H_Y)`
      (parameters taken as independent of the Hessians);
    * ``moments``: :math:`A_l\,(1 - 2\eta\,m_3/m_2 + \eta^2 m_4/m_2)`,
      :math:`m_p = \operatorname{tr}(M_l H_w^p)`.

    Undefined (``nan``): layers whose centred kernel or whose denominator is zero.

    Args:
        model: The network, returning (n, c) logits; a layer is a module that owns parameters.
        inputs: A batch.
        targets: :math:`Y`, one-hot; other real targets need their own ``loss_gradient``.
        step_size: :math:`\eta`, the learning rate.
        loss_gradient: :math:`w`; None for the mean cross-entropy.
        probes: Random probes per layer for the traces of the last two stages; None takes all
            unit vectors, which is exact and costs four curvature products per parameter.
        generator: Of the probes.

    Returns:
        The stages in float64, one entry per layer.

    Raises:
        DomainError: If the loss gradient is zero, or something is not finite.
        ShapeError: If targets and outputs differ in shape.

    Example:
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)
        ... )
        >>> predict_alignments(model, torch.eye(2), torch.eye(2), step_size=0.1).layers
        ('0', '2')

    References:
        [lou2022], Eq. (25) (Appendix D.3).

    Differs from paper:
        The last line of Eq. (25) lacks the factor :math:`A_l(t)` on its correction terms.
    """
    require_between(0.0, float("inf"), open_high=True, step_size=step_size)
    if probes is not None:
        require_count(1, probes=probes)
    network = TangentMap.of(model, inputs)
    problem = _problem(network, targets, loss_gradient, step_size)
    features = network.features()
    moved = gofe_step(
        features, problem.w, lambda vector: network.bend(problem.w, vector), step_size
    )
    parts = list(network.layers.values())
    now = torch.stack([_alignment(features[..., part], problem.y) for part in parts])
    traces = torch.stack([_traces(problem, part, probes, generator) for part in parts])
    two, three, four, before, after = traces.unbind(1)
    shrink = 1 + ratio_or_nan(step_size**2 * four - 2 * step_size * three, two)
    label_features = network.pull(problem.y)
    bent_parameters = network.bend(problem.y, network.parameters)
    return AlignmentStages(
        tuple(network.layers),
        now=now,
        gofe=torch.stack([_alignment(moved[..., part], problem.y) for part in parts]),
        ratio=now * _growth(problem, label_features, parts),
        theta=now * _growth(problem, bent_parameters, parts),
        trace_y=now * ratio_or_nan(after, before),
        moments=now * shrink,
    )


@dataclass(frozen=True)
class _Problem:
    network: TangentMap
    w: Tensor
    y: Tensor
    step_size: float

    def advance(self, vectors: Tensor) -> Tensor:
        """``(I - eta H_w) u`` for each row u."""
        return vectors - self.step_size * self.network.curvature(self.w, vectors)


def _problem(
    network: TangentMap, targets: Tensor, loss_gradient: Tensor | None, step_size: float
) -> _Problem:
    outputs = network.outputs()
    require_same_shape(targets=targets, outputs=outputs)
    require_finite(targets=targets)
    labels = double(targets)
    if loss_gradient is None:
        w = cross_entropy_gradient(outputs, labels)
    else:
        require_same_shape(loss_gradient=loss_gradient, outputs=outputs)
        require_finite(loss_gradient=loss_gradient)
        w = double(loss_gradient)
    if not bool(w.any()):
        raise DomainError("loss_gradient: expected a gradient that is not zero; it has converged")
    return _Problem(network, w, labels - labels.mean(), step_size)


def _alignment(features: Tensor, labels: Tensor) -> Tensor:
    """``A`` of one layer; features are centred before the Gram, where no digits cancel."""
    psi, y = features.flatten(0, 1), labels.flatten()
    centered = center_columns(psi)
    small = centered if psi.shape[1] <= len(y) else centered.mT
    norm = (small.mT @ small).norm()  # of the kernel, or of its equal on the smaller side
    defined = centered.norm() > 8 * eps_of(psi) * psi.norm()
    return ratio_or_nan((y @ psi).square().sum(), norm * y.square().sum(), defined)


def _growth(problem: _Problem, vector: Tensor, parts: list[slice]) -> Tensor:
    """``|M_l H u|² / |M_l u|²`` of every layer."""
    after = problem.advance(vector.unsqueeze(0))[0]
    squares = [
        torch.stack([values[part].square().sum() for part in parts]) for values in (after, vector)
    ]
    return ratio_or_nan(squares[0], squares[1])


def _traces(
    problem: _Problem, part: slice, probes: int | None, generator: torch.Generator | None
) -> Tensor:
    """``tr M H_w²``, ``tr M H_w³``, ``tr M H_w⁴``, ``tr H_Y M H_Y``, ``tr H_Y H M H H_Y``."""
    network = problem.network
    total = network.parameters.new_zeros(5)
    size = part.stop - part.start
    count = size if probes is None else probes
    for first in range(0, count, _CHUNK):
        rows = min(_CHUNK, count - first)
        z = network.parameters.new_zeros(rows, len(network.parameters))
        z[:, part] = _probes(rows, size, first, probes is None, generator).to(z)
        once = network.curvature(problem.w, z)
        twice = network.curvature(problem.w, once)
        label = network.curvature(problem.y, z)
        moved = network.curvature(problem.y, z - problem.step_size * once)
        terms = (once * once, once * twice, twice * twice, label * label, moved * moved)
        total = total + torch.stack([term.sum() for term in terms])
    return total / (1 if probes is None else probes)


def _probes(
    rows: int, size: int, first: int, exact: bool, generator: torch.Generator | None
) -> Tensor:
    """Some unit vectors of the layer, or random signs."""
    if exact:
        return torch.eye(size, dtype=torch.float64)[first : first + rows]
    device = generator.device if generator is not None else None
    return 2.0 * torch.randint(0, 2, (rows, size), generator=generator, device=device) - 1.0
