"""Are the examples where the engine takes them to be, and does each have outputs of its own?

Shapes tell where examples lie as long as the model leaves them in place. A model that sorts, packs,
drops or routes them by what they contain moves them elsewhere in every batch: such calls are seen
here, and the examples are then measured one by one. Some examples of a batch are also run beside
others than before; outputs that change are the only reason to refuse a model.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._C import _are_functorch_transforms_active
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from theodolite.engine._in_place import MadeCall, reads_shape, stays_in_place
from theodolite.engine._places import shuffled_halves
from theodolite.engine.batches import Batch, spans
from theodolite.engine.calls import NotFollowedError, function_name, tensors_in
from theodolite.engine.state import evaluating
from theodolite.errors import CaptureError, DomainError, DtypeError, TheodoliteError

__all__ = [
    "BRANCHES",
    "LARGE",
    "Check",
    "PassWatch",
    "alike",
    "can_be_followed_alone",
    "movement",
    "moves_examples",
    "output_differences",
    "require_alike_alone",
    "require_check",
    "require_independent",
    "tolerance_of",
    "written",
]

# Calls whose result has no place for every example, whatever their arguments say.
_ALWAYS = frozenset({
    "_pack_padded_sequence", "argwhere", "masked_scatter", "masked_scatter_", "masked_select",
    "nonzero", "put", "put_", "repeat_interleave", "take", "tolist", "numpy", "__array__",
    "unique", "unique_consecutive", "_unique2", "unique_dim",
})  # fmt: skip
# Calls that move along one axis, by an index or by the values themselves.
_ALONG = frozenset({
    "cummax", "cummin", "cumprod", "cumsum", "gather", "index_add", "index_copy", "index_fill",
    "index_reduce", "index_select", "logcumsumexp", "scatter", "scatter_add", "scatter_reduce",
    "sort", "take_along_dim", "topk",
})  # fmt: skip
_BY_VALUES = frozenset({"cummax", "cummin", "cumprod", "cumsum", "logcumsumexp", "sort", "topk"})
_INDEXED = frozenset({"__getitem__", "__setitem__", "index_put", "index_put_"})
_LAST_AXIS = frozenset({"sort", "topk"})  # where no axis is given
# Products, which a matrix of zeros and ones makes a permutation, if they sum over examples.
_PRODUCTS = frozenset({"matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "einsum"})
# Calls that hand a number to Python, which may decide by it.
BRANCHES = frozenset({"__bool__", "__float__", "__index__", "__int__", "item", "is_nonzero"})

Depends = Callable[[Tensor], bool]
# Whether some examples are compared with plain autograd, none, or every one.
Check = bool | Literal["every"]


def require_check(check: Check) -> None:
    """Refuse what is neither True, False nor ``"every"``."""
    if not isinstance(check, bool) and check != "every":
        raise DomainError(f"check: expected True, False or 'every', got {check!r}; choose one")


def moves_examples(name: str) -> bool:
    """Whether a function of this name can move examples along their axis by what they contain."""
    named = _INDEXED | _ALWAYS | _PRODUCTS | {"where"}
    return name in named or _without_underscore(name) in _ALONG


def _without_underscore(name: str) -> str:
    """The name of the function that does the same out of place."""
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def movement(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    depends: Depends,
    examples: int,
) -> bool:
    """Whether a call moves examples along their axis by what they contain.

    The axis of examples is taken to be the first whose length is a multiple of their number.

    Args:
        function: The torch function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        depends: Whether a tensor depends on the examples.
        examples: Number of examples, more than one.
    """
    name = function_name(function)
    if name in _INDEXED and len(args) > 1 and isinstance(args[0], Tensor):
        return _indexes_examples(args[0], args[1], depends, examples)
    if name == "where":
        return len(args) == 1 and not kwargs and depends(args[0])
    if name in _ALWAYS:
        return any(depends(tensor) for tensor in tensors_in((args, kwargs)))
    if name in _PRODUCTS:
        return any(
            depends(tensor) and _sums_over_examples(tensor, axes, examples)
            for tensor, axes in _summed_axes(name, args)
        )
    plain = _without_underscore(name)
    if plain not in _ALONG or not args or not isinstance(args[0], Tensor):
        return False
    others = tensors_in((args[1:], kwargs))
    moved = depends(args[0]) if plain in _BY_VALUES else any(map(_is_index(depends), others))
    return moved and _axis(plain, args, kwargs) in (_example_axis(args[0], examples), None)


def _summed_axes(name: str, args: tuple[Any, ...]) -> list[tuple[Tensor, tuple[int, ...]]]:
    """Factors of a product, each with its axes over which is summed; none where they are hidden."""
    if name != "einsum":
        left, right = reversed(args[:2]) if name == "__rmatmul__" else args[:2]
        tensors = isinstance(left, Tensor) and isinstance(right, Tensor)
        if not tensors or min(left.dim(), right.dim()) < 2:
            return []
        return [(left, (left.dim() - 1,)), (right, (right.dim() - 2,))]
    if not args or not isinstance(args[0], str) or "." in args[0]:
        return []
    terms, _, result = args[0].replace(" ", "").partition("->")
    kept = set(result) if "->" in args[0] else {k for k in terms if terms.count(k) == 1}
    factors = tensors_in(args[1:])
    return [
        (factor, tuple(k for k, letter in enumerate(term) if letter not in kept))
        for factor, term in zip(factors, terms.split(","), strict=False)
    ]


def _sums_over_examples(tensor: Tensor, axes: tuple[int, ...], examples: int) -> bool:
    """Whether examples lie along one of these axes, and along no other as far as lengths tell."""
    others = (size for k, size in enumerate(tensor.shape) if k not in axes)
    return _example_axis(tensor, examples) in axes and examples not in others


def _is_index(depends: Depends) -> Callable[[Tensor], bool]:
    return lambda tensor: not tensor.is_floating_point() and depends(tensor)


def _axis(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """The axis along which a call moves; None where it is not said."""
    place = 2 if name == "topk" else 1
    axis = kwargs.get("dim", args[place] if len(args) > place else None)
    if name == "take_along_dim":
        axis = kwargs.get("dim", args[2] if len(args) > 2 else None)
    if axis is None and name in _LAST_AXIS:
        axis = -1
    if not isinstance(axis, int) or isinstance(axis, bool):
        return None
    return axis % max(1, args[0].dim())


def _example_axis(tensor: Tensor, examples: int) -> int | None:
    if tensor.is_nested:
        return 0
    fitting = (k for k, size in enumerate(tensor.shape) if size and size % examples == 0)
    return next(fitting, None)


def _indexes_examples(tensor: Tensor, index: Any, depends: Depends, examples: int) -> bool:
    """Whether an index that depends on the examples picks along their axis."""
    parts = index if isinstance(index, tuple) else (index,)
    own = _example_axis(tensor, examples)
    covered = sum(_width(part) for part in parts if part is not None and part is not Ellipsis)
    axis = 0
    for part in parts:
        if part is None:
            continue
        if part is Ellipsis:
            axis += tensor.dim() - covered
            continue
        width = _width(part)
        chosen = tensors_in((part,))
        if any(map(depends, chosen)) and (own is None or axis <= own < axis + width):
            return True
        axis += width
    return False


def _width(part: Any) -> int:
    """Axes that one part of an index takes."""
    return part.dim() if isinstance(part, Tensor) and part.dtype == torch.bool else 1


def written(target: Tensor) -> list[Tensor]:
    """Tensors that an assignment to a tensor changes: itself, and what it is a view of."""
    base = target._base
    return [target] if base is None else [target, base]


class PassWatch(TorchFunctionMode):
    """Sees what a forward pass does with the examples, whatever its parameters are.

    Args:
        inputs: Tensors that depend on the examples: the model's inputs.
        examples: Number of examples.

    Attributes:
        moved: The function that moves examples about by what they contain, if one does.
        dtypes: In which numbers results were rounded.
        branches: Whether Python got a number of the examples to decide by.
    """

    def __init__(self, inputs: Any, examples: int) -> None:
        super().__init__()
        self.moved: str | None = None
        self.dtypes: set[torch.dtype] = set()
        self.branches = False
        self._in_place = examples > 1
        self._examples = examples
        self._known = WeakTensorKeyDictionary()
        for tensor in tensors_in(inputs):
            self._known[tensor] = True
            self._in_place &= not tensor.is_nested and tensor.dim() > 0 and len(tensor) == examples

    def leaves_in_place(self, returned: Any) -> bool:
        """Whether no call could have moved examples, and what the model returned came from them."""
        return self._in_place and all(tensor in self._known for tensor in tensors_in(returned))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the function; what follows from tensors of examples depends on them too."""
        kwargs = kwargs or {}
        depends = any(tensor in self._known for tensor in tensors_in((args, kwargs)))
        if depends and self._examples > 1 and self.moved is None:
            known = self._known.__contains__
            if movement(func, args, kwargs, known, self._examples):
                self.moved = function_name(func)
        result = func(*args, **kwargs)
        self.branches |= depends and function_name(func) in BRANCHES
        if self._in_place and _are_functorch_transforms_active():
            self._in_place = False
        elif self._in_place and depends and not reads_shape(function_name(func)):
            call = MadeCall(args, kwargs, result, self._known.__contains__, self._examples)
            self._in_place = stays_in_place(function_name(func), call)
        if depends:
            changed = written(args[0]) if function_name(func) == "__setitem__" else []
            for tensor in [*tensors_in((result,)), *changed]:
                self._known[tensor] = True
                if tensor.is_floating_point() or tensor.is_complex():
                    self.dtypes.add(tensor.dtype)
        return result


# Relative disagreement that rounding explains, by the coarsest dtype that took part.
_TOLERANCES = {
    torch.float64: 1e-7,
    torch.complex128: 1e-7,
    torch.float32: 2e-3,
    torch.complex64: 2e-3,
    torch.float16: 5e-2,
    torch.bfloat16: 1e-1,
}


def tolerance_of(dtypes: set[torch.dtype]) -> float:
    """Relative disagreement that is put down to rounding, for the coarsest of these dtypes.

    Raises:
        DtypeError: If one of them is not known: nothing could be told from its rounding.
    """
    unknown = sorted(str(dtype) for dtype in dtypes if dtype not in _TOLERANCES)
    if unknown:
        raise DtypeError(
            f"model: expected numbers of float64, float32, float16 or bfloat16, got {unknown[0]}, "
            "whose rounding is not known here; convert the model to one of these"
        )
    return max(_TOLERANCES[dtype] for dtype in dtypes)


_TOGETHER = 64  # examples of a batch with which single examples are compared
LARGE = 2**24  # bytes of the results of all calls for one example: whole sequences and pictures


def output_differences(
    found: Float[Tensor, "m ..."], again: Float[Tensor, "m ..."]
) -> Float[Tensor, "2"]:
    """Largest difference between two passes over the same examples, and the size of the first."""
    first, second = found.detach().double(), again.detach().double()
    return torch.stack([(first - second).abs().max(), first.abs().max()])


def require_independent(
    model: nn.Module,
    differences: Float[Tensor, "2"],
    tolerance: float,
    outputs: Callable[[Batch], Tensor],
    batch: Batch,
) -> None:
    """Examples have given the same outputs beside other examples.

    Args:
        model: The model.
        differences: Of :func:`output_differences`.
        tolerance: Relative difference that rounding explains.
        outputs: From a batch to its outputs, without gradients; only called to find the reason.
        batch: The batch.

    Raises:
        CaptureError: If not; says whether chance, training mode or the other examples are the
            cause.
    """
    if alike(differences, tolerance):
        return
    difference, scale = differences.tolist()
    share = difference / (scale + torch.finfo(torch.float32).tiny)
    found, changed = outputs(batch), outputs(batch)
    by_chance = not alike(output_differences(found, changed), tolerance)
    training = [name for name, module in model.named_modules() if module.training and name]
    hint = ""
    if training and _cured_by_evaluation(model, outputs, batch, tolerance):
        hint = f"; {training[0]!r} and others are in training mode: call model.eval()"
    if by_chance:
        raise CaptureError(
            "model: expected the same outputs whenever an example is run, got a relative "
            f"difference of {share:.1e} between two passes: random numbers are drawn{hint}; "
            "replace functional dropout(training=True) and other functions that draw them"
        )
    raise CaptureError(
        "model: expected the same outputs for an example beside other examples, got a relative "
        f"difference of {share:.1e}: examples depend on each other, as with batch statistics, "
        f"contrastive heads or experts of limited capacity{hint}; use a readout or a part of the "
        "model that answers for each example"
    )


def require_alike_alone(
    model: nn.Module, outputs: Callable[[Batch], Tensor], batches: Sequence[Batch]
) -> None:
    """Every example has the same outputs alone as in a batch.

    One pass over all examples together and one over each alone, without gradients. A model that
    takes one example at a time only cannot mix them.

    Args:
        model: The model.
        outputs: From a batch to its outputs, without gradients.
        batches: All examples.

    Raises:
        CaptureError: If outputs differ; says why.
    """
    for batch in batches:
        for rows in spans(len(batch), _TOGETHER):
            part = batch.take(rows)
            watch = PassWatch((part.args, dict(part.kwargs)), len(part))
            try:
                with watch:
                    together = outputs(part)
            except Exception as error:
                if can_be_followed_alone(error):
                    return
                raise
            alone = torch.cat([outputs(part.take(slice(k, k + 1))) for k in range(len(part))])
            tolerance = tolerance_of({together.dtype} | watch.dtypes)
            require_independent(
                model, output_differences(together, alone), tolerance, outputs, part
            )


def alike(differences: Float[Tensor, "2"], tolerance: float) -> bool:
    """Whether rounding explains :func:`output_differences`."""
    difference, scale = differences.tolist()
    return bool(difference <= tolerance * scale + torch.finfo(torch.float32).tiny)


def _cured_by_evaluation(
    model: nn.Module, outputs: Callable[[Batch], Tensor], batch: Batch, tolerance: float
) -> bool:
    """Whether examples no longer see each other, or chance, in evaluation mode."""
    with evaluating(model):
        whole = outputs(batch)
        for places in shuffled_halves(len(batch)):
            again = outputs(batch.take(places))
            if not alike(output_differences(whole[places], again), tolerance):
                return False
    return True


def can_be_followed_alone(error: Exception) -> bool:
    """Whether examples may be measured one by one after a failure with all of them together.

    The engine's own failures are among them: one example by plain autograd needs none of it. What
    the model or the user's functions raise, they raise again.
    """
    if isinstance(error, NotFollowedError):
        return True
    ours = isinstance(error, TheodoliteError | torch.OutOfMemoryError)
    kinds = (RuntimeError, IndexError, NotImplementedError, AssertionError)
    return isinstance(error, kinds) and not ours
