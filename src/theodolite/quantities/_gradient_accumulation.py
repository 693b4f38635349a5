"""Norms and class sums of per-example gradients while batches in class order go by."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from theodolite.capture.batches import Batch
from theodolite.capture.readouts import read_outputs
from theodolite.errors import CaptureError
from theodolite.measures.gradient import SetSums
from theodolite.quantities._class_sums import ClassTally
from theodolite.quantities._example_gradients import DenseGradients, ExampleGradients, Segment
from theodolite.quantities._gradient_uses import example_gradients
from theodolite.quantities._layer_sums import LayerSums, UnitSums
from theodolite.quantities._runs import Run, Subject

__all__ = ["LOGITS", "TOTAL", "GradientAccumulation"]

# Two sets beside the layers; names of modules have no spaces.
LOGITS = "all logits"
TOTAL = "all parameters"

BatchLoss = Callable[[Tensor, Batch], Tensor]


class GradientAccumulation:
    """Sums while batches in class order go by.

    Args:
        subject: the model and its parameters.
        loss: one number per example.
        labels: class of each example, on the CPU.
        stiffness: also add up unit vectors.
    """

    def __init__(self, subject: Subject, loss: BatchLoss, labels: Tensor, stiffness: bool) -> None:
        self._subject, self._loss, self._stiffness = subject, loss, stiffness
        owned = subject.ownership
        self.order = labels.argsort(stable=True)
        self._labels = labels[self.order]
        self._listed = self._labels.tolist()
        self._classes = int(labels.max()) + 1
        self.layers = {**owned.layers, TOTAL: tuple(owned.parameters), LOGITS: (LOGITS,)}
        self._device = next(iter(owned.parameters.values())).device
        self._tallies: dict[str, ClassTally] = {}
        self._squares: dict[str, Tensor] = {}
        self._losses: list[Tensor] = []
        self._units: dict[tuple[str, str], ClassTally] = {}
        self._scales = {layer: self._zeros(self._classes) for layer in self.layers}

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=self._device)

    def add(self, batch: Batch, start: int, *, check: bool) -> None:
        """One batch: a recorded forward pass, a backward pass to all uses, and the reductions."""
        segments = self._segments(start, start + len(batch))
        run = self._subject.run(batch)
        losses = self._loss(run.outputs, batch)
        self._subject.require_finite(losses)
        self._losses.append(losses.detach())
        arrived = self._backward(run, losses, keep=check)
        derived = any(use.origin.tensor.grad_fn is not None for use in run.uses)
        plain = self._plain_squares(losses, keep=derived) if check else None
        for name, gradients in self._gradients(run, arrived):
            squares = self._squares.setdefault(name, self._zeros(len(self._labels)))
            tally = self._tallies.setdefault(name, ClassTally(self._classes, self._device))
            squares[start : start + len(batch)] = gradients.reduce(segments, tally.add)
        if plain is not None:
            self._require_agreement(plain, batch)
        if self._stiffness:
            self._add_units(self._gradients(run, arrived), segments, start)

    def _segments(self, start: int, stop: int) -> list[Segment]:
        """Runs of one class; a class closes where the next example of all has another label."""
        labels = self._listed[start : stop + 1]
        count = stop - start
        changes = [i for i in range(1, count) if labels[i] != labels[i - 1]]
        last_closes = len(labels) == count or labels[count] != labels[count - 1]
        edges = [0, *changes, count]
        return [
            Segment(labels[low], low, high, high < count or last_closes)
            for low, high in pairwise(edges)
        ]

    def _backward(self, run: Run, losses: Tensor, *, keep: bool) -> list[Tensor | None]:
        edges = [edge for use in run.uses for edge in use.edges]
        inputs = [get_gradient_edge(run.outputs), *edges]
        total = losses.sum()
        return list(torch.autograd.grad(total, inputs, retain_graph=keep, allow_unused=True))

    def _gradients(
        self, run: Run, arrived: list[Tensor | None]
    ) -> Iterator[tuple[str, ExampleGradients]]:
        logits, *others = arrived
        assert logits is not None
        yield LOGITS, DenseGradients(logits)
        yield from example_gradients(run.uses, others, self._subject.ownership, len(logits))

    def _add_units(
        self, gradients: Iterator[tuple[str, ExampleGradients]], segments: list[Segment], start: int
    ) -> None:
        """A second, weighted sum: each gradient divided by its norm in the layer."""
        span = slice(start, start + segments[-1].stop)
        weights = {}
        for layer in self.layers:
            norms = self._layer_squares(layer)[: span.stop].sqrt()
            counts = self._per_class((norms > 0).double())
            self._scales[layer].copy_(1.0 / counts.clamp(min=1.0))
            inverse = torch.where(norms > 0, 1.0 / norms, torch.zeros_like(norms))
            weights[layer] = inverse[span]
        for name, values in gradients:
            for layer, names in self.layers.items():
                if name in names:
                    tally = self._units.setdefault(
                        (layer, name),
                        ClassTally(self._classes, self._device, self._scales[layer]),
                    )
                    values.weighted_sums(segments, weights[layer], tally.add)

    def _plain_squares(self, losses: Tensor, *, keep: bool = False) -> dict[str, Tensor]:
        """Squared norms of autograd's own gradient of the summed loss."""
        parameters = self._subject.ownership.parameters
        grads = torch.autograd.grad(
            losses.sum(), list(parameters.values()), retain_graph=keep, allow_unused=True
        )
        return {
            name: self._zeros() if grad is None else grad.double().square().sum()
            for name, grad in zip(parameters, grads, strict=True)
        }

    def _require_agreement(self, plain: dict[str, Tensor], batch: Batch) -> None:
        """Sums over the first batch, and its first example alone, agree with plain autograd."""
        found = {name: tally.running_square for name, tally in self._tallies.items()}
        self._compare("sum of gradients", found, plain, batch)
        single = batch.take(slice(0, 1))
        model = self._subject.model
        outputs = read_outputs(single.run(model), single, self._subject.readout)
        alone = self._plain_squares(self._loss(outputs, single))
        first = {name: squares[0] for name, squares in self._squares.items()}
        self._compare("gradient of the first example", first, alone, batch)

    def _compare(
        self, what: str, found: dict[str, Tensor], plain: dict[str, Tensor], batch: Batch
    ) -> None:
        names = list(plain)
        left = torch.stack([found.get(name, self._zeros()) for name in names])
        right = torch.stack([plain[name] for name in names])
        eps = torch.finfo(self._losses[0].dtype).eps
        scale = torch.maximum(left, right)
        # Gradients that vanish (a shift before a normalisation) leave rounding of the others.
        allowed = 2e4 * eps * scale + len(batch) * (1e3 * eps) ** 2 * scale.sum()
        wrong = ((left - right).abs() > allowed).nonzero().flatten().tolist()
        if wrong:
            name = names[wrong[0]]
            raise CaptureError(
                f"{what} with respect to {name!r}: expected squared norm {right[wrong[0]]:.6g} as "
                f"autograd gives it, got {left[wrong[0]]:.6g}; examples may depend on each other "
                "or on chance (use model.eval()), else a rule is wrong: please report it"
            )

    def _layer_squares(self, layer: str) -> Tensor:
        total = self._zeros(len(self._labels))
        for name in self.layers[layer]:
            if name in self._squares:
                total += self._squares[name]
        return total

    def _per_class(self, values: Tensor) -> Tensor:
        labels = self._labels[: len(values)].to(values.device)
        return self._zeros(self._classes).index_add_(0, labels, values)

    def losses(self) -> Float[Tensor, " n"]:
        """Losses in the order of the data."""
        return self._in_data_order(torch.cat(self._losses))

    def _in_data_order(self, values: Tensor) -> Tensor:
        result = torch.empty_like(values)
        result[self.order.to(values.device)] = values
        return result

    def sums(self, layer: str) -> LayerSums:
        """What has been added up for one layer."""
        names = [name for name in self.layers[layer] if name in self._tallies]
        squares = self._layer_squares(layer)
        norms = squares.sqrt()
        by_class, whole = self._zeros(self._classes), self._zeros()
        for name in names:
            by_class += self._tallies[name].squares
            whole += self._tallies[name].total_square
        counts = self._per_class(torch.ones_like(norms))
        classes = SetSums(counts, by_class, self._per_class(norms), self._per_class(squares))
        overall = SetSums(counts.sum(), whole, norms.sum(), squares.sum())
        units = self._unit_sums(layer, names) if self._stiffness else None
        return LayerSums(
            classes, overall, self._in_data_order(norms), self._weight_norm(layer), units
        )

    def _weight_norm(self, layer: str) -> Tensor:
        if layer == LOGITS:
            return self._zeros() + torch.nan
        parameters = self._subject.ownership.parameters
        squares = [parameters[name].detach().double().square().sum() for name in self.layers[layer]]
        return torch.stack(squares).sum().sqrt()

    def _unit_sums(self, layer: str, names: list[str]) -> UnitSums:
        tallies = [self._units[layer, name] for name in names]
        counts = self._per_class((self._layer_squares(layer) > 0).double())
        squares, total, mean = self._zeros(self._classes), self._zeros(), self._zeros()
        for tally in tallies:
            squares += tally.squares
            total += tally.total_square
            mean += tally.scaled_square
        return UnitSums(counts, squares, total, mean)
