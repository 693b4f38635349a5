"""One step of feature evolution, and the layer alignments that it predicts.

``Ψ`` are the tangent features (n, c, p), ``w`` the gradient of the mean loss in output space
(n, c), ``K`` the tangent kernel (n, c, n, c), ``H_w`` the output Hessian (p, p).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from theodolite.checks import (
    require_axes,
    require_between,
    require_count,
    require_finite,
    require_nonempty,
    require_same_length,
    require_same_shape,
    require_symmetric,
)
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import (
    alignment_from_norms,
    array_function,
    center_all,
    center_columns,
    double,
    eps_of,
    prints_shapes,
    ratio_or_nan,
    vanishes_when_centered,
)
from theodolite_papers.lou2022.formulas.homogeneity import TangentMap
from theodolite_papers.lou2022.formulas.losses import cross_entropy_gradient

Operator = Float[Tensor, "p p"] | Callable[[Tensor], Tensor]
_CHUNK = 256  # vectors whose four curvature products are held at once


def require_tangent_features(tangent_features: Tensor) -> None:
    """Finite gradients with axes example, output, parameter."""
    require_axes(3, tangent_features=tangent_features)
    require_nonempty(tangent_features=tangent_features)
    require_finite(tangent_features=tangent_features)


@array_function
def feature_kernel(tangent_features: Float[Tensor, "n c p"]) -> Float[Tensor, "n c n c"]:
    r"""Tangent kernel of explicit tangent features, :math:`K = \Psi^\top\Psi`.

    Args:
        tangent_features: :math:`\Psi`; entry ``[x, i]`` is the gradient of output i at example x.

    Returns:
        The kernel, indexed by example and output on both sides.

    Raises:
        ShapeError: If the features have not three axes, or one of length 0.
        DomainError: If they are not finite.

    Examples:
        >>> feature_kernel(torch.tensor([[[3.0, 4.0]]])).item()
        25.0

    References:
        [lou2022], Eq. (2).
    """
    require_tangent_features(tangent_features)
    features = double(tangent_features)
    return torch.einsum("xip,yjp->xiyj", features, features)


@array_function
def ofe_step(
    kernel: Float[Tensor, "n c n c"],
    loss_gradient: Float[Tensor, "n c"],
    step_size: float,
    strength: float = 1.0,
) -> Float[Tensor, "n c n c"]:
    r"""Layer kernel after one step of optimal feature evolution.

    .. math:: K_l \leftarrow T K_l T,\qquad T = I + \lambda\eta\,ww^\top

    The same T serves every layer and the sum of layers. With :math:`w = -\tilde Y` the alignment
    with the labels never falls, and tends to 1 with :math:`\lambda`.

    Args:
        kernel: :math:`K_l`, over pairs of (example, output).
        loss_gradient: :math:`w`.
        step_size: :math:`\eta`.
        strength: :math:`\lambda`, how greedily features move; its factor 2 is absorbed.

    Raises:
        DomainError: If something is not finite, or step size or strength is negative.
        ShapeError: If kernel and gradient do not match.

    Examples:
        >>> kernel = torch.eye(2).reshape(2, 1, 2, 1)
        >>> ofe_step(kernel, torch.tensor([[1.0], [0.0]]), step_size=0.5).reshape(2, 2)
        tensor([[2.2500, 0.0000],
                [0.0000, 1.0000]])

    References:
        [lou2022], Eq. (15) and Appendix D.
    """
    require_axes(4, kernel=kernel)
    require_axes(2, loss_gradient=loss_gradient)
    if kernel.shape != loss_gradient.shape * 2:
        raise ShapeError(
            f"kernel: expected shape (n, c, n, c) for a loss gradient of shape "
            f"{tuple(loss_gradient.shape)}, got {tuple(kernel.shape)}"
        )
    require_finite(kernel=kernel, loss_gradient=loss_gradient)
    _require_rates(step_size, strength)
    m = loss_gradient.numel()
    K, w = double(kernel).reshape(m, m), double(loss_gradient).reshape(m)
    rate = strength * step_size
    K = K + rate * torch.outer(w, w @ K)
    K = K + rate * torch.outer(K @ w, w)
    return K.reshape(kernel.shape)


@array_function
def ofe_features(
    features: Float[Tensor, "n c p"],
    loss_gradient: Float[Tensor, "n c"],
    step_size: float,
    strength: float = 1.0,
) -> Float[Tensor, "n c p"]:
    r"""Tangent features after one step of optimal feature evolution.

    .. math:: \Psi \leftarrow \Psi\,(I + \lambda\eta\,ww^\top)

    Args:
        features: :math:`\Psi`, of one layer or of all.
        loss_gradient: :math:`w`.
        step_size: :math:`\eta`.
        strength: :math:`\lambda`.

    Raises:
        DomainError: If something is not finite, or step size or strength is negative.
        ShapeError: If features and gradient do not match.

    Examples:
        >>> ofe_features(torch.ones(2, 1, 1), torch.tensor([[1.0], [0.0]]), 0.5).flatten().tolist()
        [1.5, 1.0]

    References:
        [lou2022], Eq. (15) and Appendix D.
    """
    _require_features(features, loss_gradient)
    _require_rates(step_size, strength)
    psi, w = double(features), double(loss_gradient)
    return psi + strength * step_size * _rank_one(_apply_features(psi, w), w)


@array_function
def gofe_step(
    features: Float[Tensor, "n c p"],
    loss_gradient: Float[Tensor, "n c"],
    hessian: Operator,
    step_size: float,
    *,
    preconditioner: Operator | None = None,
    batch: Bool[Tensor, " n"] | None = None,
) -> Float[Tensor, "n c p"]:
    r"""Tangent features after one step of generalised optimal feature evolution.

    .. math:: \Psi \leftarrow \Psi - \eta\,H_w A\,\Psi B w\,\frac{w^\top}{|w|^2}

    Gradient descent has :math:`A = B = I`, a preconditioned method its own :math:`A` (natural
    gradient: a damped inverse Fisher), mini-batch SGD :math:`B = (n/b)\operatorname{diag}(1_B)`.
    The increment is the one of least norm that moves :math:`\Psi w` as the optimiser does;
    directions orthogonal to :math:`w` stay.

    Args:
        features: :math:`\Psi`, of all layers.
        loss_gradient: :math:`w`, of the whole data.
        hessian: :math:`H_w`, a matrix or the function :math:`u \mapsto H_w u`.
        step_size: :math:`\eta`.
        preconditioner: :math:`A`, a matrix or a function; None for the identity.
        batch: Which examples the step sees; None for all.

    Raises:
        DomainError: If the loss gradient is zero (converged), the batch is empty, or something is
            not finite.
        ShapeError: If the shapes do not match.

    Examples:
        >>> psi, w = torch.ones(2, 1, 1), torch.tensor([[1.0], [0.0]])
        >>> gofe_step(psi, w, torch.tensor([[-1.0]]), step_size=0.5).flatten().tolist()
        [1.5, 1.0]

    References:
        [lou2022], Appendix D, generalised optimal feature evolution.

    Differs from paper:
        The paper covers optimisers that act on the parameters; the weight B of a mini-batch acts
        in output space.
    """
    _require_features(features, loss_gradient)
    _require_rates(step_size, 0.0)
    square = _require_unconverged(loss_gradient)
    psi, w = double(features), double(loss_gradient)
    moved = _apply(preconditioner, _apply_features(psi, _batch_weights(w, batch)))
    return psi - step_size / square * _rank_one(_apply(hessian, moved), w)


@array_function
def gofe_velocity(
    hessian: Float[Tensor, "p p"],
    loss_gradient: Float[Tensor, "n c"],
    preconditioner: Float[Tensor, "p p"] | None = None,
) -> Float[Tensor, "p p"]:
    r"""Velocity matrix of generalised optimal feature evolution.

    .. math:: V = -\frac{H_w A}{|w|^2},\qquad \frac{d\Psi}{dt} = \eta\,V\Psi ww^\top

    Args:
        hessian: :math:`H_w`.
        loss_gradient: :math:`w`.
        preconditioner: :math:`A`; None for the identity.

    Raises:
        DomainError: If the loss gradient is zero or the Hessian not symmetric.
        ShapeError: If the matrices differ in size.

    Examples:
        >>> gofe_velocity(torch.tensor([[4.0]]), torch.tensor([[2.0]])).item()
        -1.0

    References:
        [lou2022], Appendix D, the choice of the velocity V.
    """
    require_symmetric(hessian=hessian)
    square = _require_unconverged(loss_gradient)
    if preconditioner is None:
        return -double(hessian) / square
    require_same_shape(hessian=hessian, preconditioner=preconditioner)
    require_finite(preconditioner=preconditioner)
    return -double(hessian) @ double(preconditioner) / square


@array_function
def parameter_step(
    features: Float[Tensor, "n c p"],
    loss_gradient: Float[Tensor, "n c"],
    step_size: float,
    *,
    preconditioner: Operator | None = None,
    batch: Bool[Tensor, " n"] | None = None,
) -> Float[Tensor, " p"]:
    r"""Change of the parameters in the step that :func:`gofe_step` belongs to.

    .. math:: \Delta\theta = -\eta\,A\,\Psi B w

    Args:
        features: :math:`\Psi`.
        loss_gradient: :math:`w`.
        step_size: :math:`\eta`.
        preconditioner: :math:`A`, a matrix or a function; None for the identity.
        batch: Which examples the step sees; None for all.

    Raises:
        DomainError: If something is not finite or the batch is empty.
        ShapeError: If the shapes do not match.

    Examples:
        >>> parameter_step(torch.ones(2, 1, 1), torch.ones(2, 1), step_size=0.5).item()
        -1.0

    References:
        [lou2022], Appendix D, generalised optimal feature evolution.
    """
    _require_features(features, loss_gradient)
    _require_rates(step_size, 0.0)
    psi, w = double(features), double(loss_gradient)
    gradient = _apply_features(psi, _batch_weights(w, batch))
    return -step_size * _apply(preconditioner, gradient)


@array_function
def loss_gradient_step(
    kernel: Float[Tensor, "n c n c"],
    loss_gradient: Float[Tensor, "n c"],
    output_hessian: Float[Tensor, "n c c"],
    step_size: float,
) -> Float[Tensor, "n c"]:
    r"""Loss gradient after the same step, to first order.

    .. math:: w \leftarrow w - \eta\,S K w

    For a preconditioned method pass the kernel :math:`\Psi^\top A \Psi`.

    Args:
        kernel: :math:`K`, the sum over all layers.
        loss_gradient: :math:`w`.
        output_hessian: :math:`S`, one c x c block per example, e.g.
            :math:`(\operatorname{diag} p - pp^\top)/n` for the mean cross-entropy.
        step_size: :math:`\eta`.

    Raises:
        DomainError: If something is not finite.
        ShapeError: If the shapes do not match.

    Examples:
        >>> kernel, block = torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1)
        >>> loss_gradient_step(kernel, torch.ones(1, 1), block, step_size=0.25).item()
        0.75

    References:
        [lou2022], Eq. (15), with dw/dF for the printed dw/dθ.
    """
    require_axes(4, kernel=kernel)
    require_axes(3, output_hessian=output_hessian)
    require_same_length(loss_gradient=loss_gradient, kernel=kernel, output_hessian=output_hessian)
    require_finite(kernel=kernel, loss_gradient=loss_gradient, output_hessian=output_hessian)
    _require_rates(step_size, 0.0)
    w = double(loss_gradient)
    moved = torch.einsum("xiyj,yj->xi", double(kernel), w)
    return w - step_size * torch.einsum("xij,xj->xi", double(output_hessian), moved)


def _apply_features(psi: Tensor, weights: Tensor) -> Tensor:
    return torch.einsum("nip,ni->p", psi, weights)


def _rank_one(direction: Tensor, weights: Tensor) -> Tensor:
    return torch.einsum("p,ni->nip", direction, weights)


def _apply(operator: Operator | None, vector: Tensor) -> Tensor:
    if operator is None:
        return vector
    if isinstance(operator, Tensor):
        if operator.shape != (len(vector), len(vector)):
            raise ShapeError(
                f"expected a matrix over the {len(vector)} parameters, "
                f"got shape {tuple(operator.shape)}"
            )
        require_finite(operator=operator)
        return double(operator) @ vector
    return operator(vector)


def _batch_weights(w: Tensor, batch: Tensor | None) -> Tensor:
    """``B w``: weights with which the mean over the batch estimates the mean over all examples."""
    if batch is None:
        return w
    if batch.shape != w.shape[:1] or batch.dtype != torch.bool:
        raise ShapeError(
            f"batch: expected one boolean per example (n = {len(w)}), "
            f"got {batch.dtype} of shape {tuple(batch.shape)}"
        )
    size = int(batch.sum())
    if size == 0:
        raise DomainError("batch: expected at least one example, got none")
    return torch.where(batch.unsqueeze(1), w * (len(w) / size), torch.zeros_like(w))


def _require_features(features: Tensor, loss_gradient: Tensor) -> None:
    require_axes(3, features=features)
    require_axes(2, loss_gradient=loss_gradient)
    require_nonempty(features=features)
    if features.shape[:2] != loss_gradient.shape:
        raise ShapeError(
            f"features: expected shape (n, c, p) for a loss gradient of shape "
            f"{tuple(loss_gradient.shape)}, got {tuple(features.shape)}"
        )
    require_finite(features=features, loss_gradient=loss_gradient)


def _require_unconverged(loss_gradient: Tensor) -> Tensor:
    require_finite(loss_gradient=loss_gradient)
    square = double(loss_gradient).square().sum()
    if square == 0:
        raise DomainError(
            "loss_gradient: expected a gradient that is not zero; training has converged, "
            "and features no longer evolve"
        )
    return square


def _require_rates(step_size: float, strength: float) -> None:
    require_between(0.0, float("inf"), open_high=True, step_size=step_size, strength=strength)


@prints_shapes
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
    sketch_vectors: int | None = None,
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
        sketch_vectors: Random vectors per layer for the traces of the last two stages; None takes
            all unit vectors, which is exact and costs four curvature products per parameter.
        generator: Of the random vectors.

    Returns:
        The stages in float64, one entry per layer.

    Raises:
        DomainError: If the loss gradient is zero, or something is not finite.
        ShapeError: If targets and outputs differ in shape.

    Examples:
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
    if sketch_vectors is not None:
        require_count(1, sketch_vectors=sketch_vectors)
    network = TangentMap.of(model, inputs)
    problem = _problem(network, targets, loss_gradient, step_size)
    features = network.features()
    moved = gofe_step(
        features, problem.w, lambda vector: network.bend(problem.w, vector), step_size
    )
    parts = list(network.layers.values())
    now = torch.stack([_alignment(features[..., part], problem.y) for part in parts])
    traces = torch.stack([_traces(problem, part, sketch_vectors, generator) for part in parts])
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
        raise DomainError(
            "loss_gradient: expected a gradient that is not zero, got zeros; training has converged"
        )
    return _Problem(network, w, center_all(labels), step_size)


def _alignment(features: Tensor, labels: Tensor) -> Tensor:
    """``A`` of one layer; features are centred before the Gram, where no digits cancel."""
    psi, y = features.flatten(0, 1), labels.flatten()
    centered = center_columns(psi)
    small = centered if psi.shape[1] <= len(y) else centered.mT
    norm = (small.mT @ small).norm()  # of the kernel, or of its equal on the smaller side
    defined = ~vanishes_when_centered(centered, psi, eps_of(psi))
    return alignment_from_norms((y @ psi).square().sum(), norm, y.square().sum(), defined)


def _growth(problem: _Problem, vector: Tensor, parts: list[slice]) -> Tensor:
    """``|M_l H u|² / |M_l u|²`` of every layer."""
    after = problem.advance(vector.unsqueeze(0))[0]
    squares = [
        torch.stack([values[part].square().sum() for part in parts]) for values in (after, vector)
    ]
    return ratio_or_nan(squares[0], squares[1])


def _traces(
    problem: _Problem, part: slice, sketch_vectors: int | None, generator: torch.Generator | None
) -> Tensor:
    """``tr M H_w²``, ``tr M H_w³``, ``tr M H_w⁴``, ``tr H_Y M H_Y``, ``tr H_Y H M H H_Y``."""
    network = problem.network
    total = network.parameters.new_zeros(5)
    size = part.stop - part.start
    count = size if sketch_vectors is None else sketch_vectors
    for first in range(0, count, _CHUNK):
        rows = min(_CHUNK, count - first)
        z = network.parameters.new_zeros(rows, len(network.parameters))
        z[:, part] = _vectors(rows, size, first, sketch_vectors is None, generator).to(z)
        once = network.curvature(problem.w, z)
        twice = network.curvature(problem.w, once)
        label = network.curvature(problem.y, z)
        moved = network.curvature(problem.y, z - problem.step_size * once)
        terms = (once * once, once * twice, twice * twice, label * label, moved * moved)
        total = total + torch.stack([term.sum() for term in terms])
    return total / (1 if sketch_vectors is None else sketch_vectors)


def _vectors(
    rows: int, size: int, first: int, exact: bool, generator: torch.Generator | None
) -> Tensor:
    """Some unit vectors of the layer, or random signs."""
    if exact:
        return torch.eye(size, dtype=torch.float64)[first : first + rows]
    device = generator.device if generator is not None else None
    return 2.0 * torch.randint(0, 2, (rows, size), generator=generator, device=device) - 1.0
