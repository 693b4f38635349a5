"""Refuse models whose answer for one example depends on the others, or on chance."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from theodolite.errors import DomainError

__all__ = ["require_fixed_mode"]


def require_fixed_mode(model: nn.Module) -> None:
    """No batch statistics and no dropout: what a layer gives for an example is a function of it.

    Raises:
        DomainError: If a module mixes examples or draws random numbers; names all of them.
    """
    problems = [
        (reason, name or type(module).__name__)
        for name, module in model.named_modules()
        if (reason := _reason(module))
    ]
    if not problems:
        return
    reasons = dict.fromkeys(reason for reason, _ in problems)
    sentences = []
    for reason in reasons:
        names = [name for other, name in problems if other == reason]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        sentences.append(f"{', '.join(map(repr, names[:3]))}{more} {reason}")
    raise DomainError("model: expected one answer per example, but " + "; ".join(sentences))


def _reason(module: nn.Module) -> str | None:
    if isinstance(module, (_BatchNorm, _InstanceNorm)):
        return _norm_reason(module)
    if not module.training:
        return None
    rate = module.p if isinstance(module, _DropoutNd) else getattr(module, "dropout", 0.0)
    if isinstance(rate, float) and rate > 0:
        return "drop out units at random: call model.eval() first"
    return None


def _norm_reason(module: _BatchNorm | _InstanceNorm) -> str | None:
    tracks = module.running_mean is not None
    if isinstance(module, _InstanceNorm):
        if module.training and tracks:
            return "update their statistics in training mode: call model.eval() first"
        return None
    if module.training:
        return (
            "normalise over the batch in training mode: call model.eval() first, "
            "or .eval() on these layers alone"
        )
    if not tracks:
        return (
            "have no running statistics and normalise over the batch in every mode: "
            "build them with track_running_stats=True, or use GroupNorm"
        )
    return None
