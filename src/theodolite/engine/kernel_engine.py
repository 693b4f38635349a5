"""The computation of kernels: passes over blocks of examples, then contractions of their factors.

:func:`prepare` runs one example alone and groups the uses of parameters. The
:class:`KernelEngine` then plans, collects the factors of blocks of examples (forward and backward
passes) and fills blocks of kernels with them (contractions).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from theodolite.engine.calls import CannotSplitError
from theodolite.engine.check import (
    Checked,
    Checker,
    Rerun,
    RowWeights,
    check_rows,
    compare_rows,
)
from theodolite.engine.collect import BlockSizes, Collector, DenseCollector, collector_of, compact
from theodolite.engine.compare import (
    add_gradients,
    all_finite,
    plain_gradients,
    require_finite,
    require_finite_gradients,
    with_group_norms,
)
from theodolite.engine.contract import Contraction, KernelBlock, stripe_size
from theodolite.engine.factors import Factors, wide_dtype
from theodolite.engine.inputs import BatchList, ExampleBlock
from theodolite.engine.layers import Ownership, own_parameters, require_real, unwrap
from theodolite.engine.plan import (
    EngineOptions,
    KernelSizes,
    ParameterGroup,
    Plan,
    dense_groups,
    group_parameters,
    make_plan,
)
from theodolite.engine.readouts import Mode, resolve_outputs, resolve_readout
from theodolite.engine.runs import ForwardRun, ModelRecorder
from theodolite.engine.state import require_fixed_mode, without_autocast

# Output gradients up to this size share one backward pass.
_FEW_BYTES = {"cpu": 2**25, "cuda": 2**28}
# On a GPU larger output gradients share a pass too, if a pass of one output has few examples.
_FILLING_EXAMPLES = 112  # a pass of one output keeps a GPU busy with more examples than this
_JOINT_EXAMPLES = 512  # examples times outputs of a joint pass, about
_JOINT_BYTES = 2**30, 2**32  # least and most; between them the plan decides


@dataclass(frozen=True)
class Collected:
    """Factors of one block of examples."""

    span: slice  # the examples, as indices of the data
    # One entry per group; None if all gradients are zero, or after its last contraction.
    factors: list[Factors | None]
    outputs: Tensor  # the differentiated outputs, (n, c), detached
    weighted_gradient: dict[str, Tensor]  # parameter -> gradient of the weighted sum of all outputs
    # Reruns of the checked batches; kernels or gradients are compared later.
    reruns: list[Rerun] = field(default_factory=list)


@dataclass
class KernelEngine:
    """A model that was run with one example, ready to compute kernels."""

    recorder: ModelRecorder  # the model and the choice of outputs and parameters
    # Layer -> names of its parameters, for the layers of this engine.
    layer_parameters: Mapping[str, tuple[str, ...]]
    groups: list[ParameterGroup]  # parameter groups of these layers, whose kernels add up
    # The run of one example alone: of the first batch, drawn if batches are checked.
    single_run: ForwardRun
    dtype: torch.dtype  # dtype of factors and kernels
    device: torch.device
    options: EngineOptions
    # Why plain autograd takes one example at a time; None for batches.
    fallback: Checked | None = None

    @property
    def checked(self) -> Checked:
        """How examples are measured, and what was checked."""
        return self.recorder.checker.summary() if self.fallback is None else self.fallback

    @property
    def output_count(self) -> int:
        """The number c of differentiated outputs of an example."""
        return self.single_run.outputs.shape[1]

    @property
    def mode(self) -> Mode:
        """Which pairs of outputs the kernels contain."""
        return self.recorder.choice.mode

    @cached_property
    def layers(self) -> list[str]:
        """Selected layers in order of execution; unused layers come last."""
        order = {name: rank for rank, group in enumerate(self.groups) for name in group.parameters}

        def first_use(layer: str) -> int:
            names = self.layer_parameters[layer]
            return min(order.get(name, len(order) + len(self.groups)) for name in names)

        return sorted(self.layer_parameters, key=first_use)

    @cached_property
    def group_indices(self) -> dict[str, list[int]]:
        """Layer -> indices of the groups that it owns."""
        indices = {group.parameter: index for index, group in enumerate(self.groups)}
        return {
            layer: sorted(indices[name] for name in set(names) if name in indices)
            for layer, names in self.layer_parameters.items()
        }

    @cached_property
    def _hidden_groups(self) -> list[int]:
        """Groups that share every layer that owns them with other groups.

        The comparison of a layer's kernel could miss an error in a small group, so these groups are
        also compared by themselves.
        """
        layers = self.group_indices.values()
        single = {groups[0] for groups in layers if len(groups) == 1}
        return sorted({index for groups in layers for index in groups} - single)

    def plan(self, left: int, right: int | None, kernel_count: int, held_bytes: int = 0) -> Plan:
        """Choose routes and sizes; raise if there is not enough memory.

        ``left`` and ``right`` are numbers of examples; None for a symmetric kernel.
        """
        sizes = KernelSizes(
            left=left,
            right=left if right is None else right,
            output_count=self.output_count,
            mode=self.mode,
            symmetric=right is None,
            dtype=self.dtype,
            device=self.device,
            kernel_count=kernel_count,
            held_bytes=held_bytes,
        )
        return make_plan(self.groups, self.single_run, self.recorder.ownership, sizes, self.options)

    def split_by_layers(self, left: int, right: int | None) -> "list[tuple[KernelEngine, Plan]]":
        """Divide the layers among several engines, if the factors of all layers do not fit.

        The other way to save memory, small blocks of examples, would need many short passes. The
        backward passes of an engine end at its earliest layer. Only this engine is returned if all
        factors of all examples fit, or if no division helps.
        """
        plan = self.plan(left, right, len(self.layers))
        examples = max(left, right or 0)
        if plan.block_size >= examples or self.fallback is not None:
            return [(self, plan)]
        for count in range(2, len(self.layers) + 1):
            found = [self._of_layers(names) for names in self._layer_parts(plan, count)]
            plans = [part.plan(left, right, len(self.layers)) for part in found]
            if all(part.block_size >= examples for part in plans):
                return list(zip(found, plans, strict=True))
        return [(self, plan)]

    def _layer_parts(self, plan: Plan, count: int) -> list[list[str]]:
        """Neighbouring layers in this number of parts or fewer, with about equal memory."""
        total = sum(group_plan.numbers for group_plan in plan.group_plans) / count
        parts: list[list[str]] = [[]]
        kept = 0
        for layer in self.layers:
            own = sum(plan.group_plans[index].numbers for index in self.group_indices[layer])
            if parts[-1] and kept + own / 2 > total * len(parts):
                parts.append([])
            parts[-1].append(layer)
            kept += own
        return parts

    def _of_layers(self, names: Sequence[str]) -> "KernelEngine":
        """The same engine for some of its layers."""
        layers = {name: own for name, own in self.layer_parameters.items() if name in set(names)}
        wanted = {parameter for own in layers.values() for parameter in own}
        groups = [group for group in self.groups if wanted & set(group.parameters)]
        return replace(self, layer_parameters=layers, groups=groups)

    def collect(self, block: ExampleBlock, plan: Plan, weights: Tensor | None = None) -> Collected:
        """Factors of all groups and, with weights (n, c), the gradient of the weighted outputs."""
        sizes = BlockSizes(
            block.span.stop - block.span.start,
            self.output_count,
            self.dtype,
            self.device,
            waiting_bytes=min(2**26, 2 * plan.tile_bytes),
        )
        if self.fallback is not None:
            return self._collect_one_by_one(block, plan, sizes, weights)
        parameters = self.recorder.ownership.parameters
        collectors = [
            collector_of(group_plan, sizes, parameters[group_plan.group.parameter])
            for group_plan in plan.group_plans
        ]
        outputs: list[Tensor] = []
        reruns: list[Rerun] = []
        total: dict[str, Tensor] = {}
        start = 0
        for batch in block.batches:
            rows = slice(start, start + len(batch))
            first = block.span.start + start
            run = self.recorder.run(batch, examples=range(first, first + len(batch)))
            checker = self.recorder.checker
            row_weights = checker.draw_row_weights(run, first)
            _add_passes(
                self.recorder, collectors, plan, run, rows, row_weights, weights is not None
            )
            if row_weights is not None:
                reruns.append(checker.draw_rerun(self.recorder, run, batch, first))
            if weights is not None:
                output_weights = weights[rows].to(run.outputs.dtype)
                add_gradients(total, plain_gradients(run.outputs, parameters, output_weights))
            outputs.append(compact(run.outputs.detach()))
            del run  # before the next run: its graph is as large as all kept tensors
            start = rows.stop
        values = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        factors = [collector.factors() for collector in collectors]
        hidden = [part for index in self._hidden_groups if (part := factors[index]) is not None]
        compared = []
        for rerun in reruns:
            first = rerun.start - block.span.start
            own = [part[first : first + len(rerun.batch)] for part in hidden]
            compared.append(with_group_norms(rerun, own, self.mode, plan.tile_bytes))
        return Collected(block.span, factors, values, total, compared)

    def _collect_one_by_one(
        self, block: ExampleBlock, plan: Plan, sizes: BlockSizes, weights: Tensor | None
    ) -> Collected:
        """The same from plain autograd, one example and one output at a time."""
        parameters = self.recorder.ownership.parameters
        collectors = {
            group.parameter: DenseCollector(group, sizes, parameters[group.parameter])
            for group in (group_plan.group for group_plan in plan.group_plans)
        }
        rows: list[Tensor] = []
        singles = (b.take(slice(k, k + 1)) for b in block.batches for k in range(len(b)))
        for example, single in enumerate(singles):
            outputs = self.recorder.usable_outputs(single)
            for output in range(self.output_count):
                keep = output + 1 < self.output_count
                found = plain_gradients(outputs[0, output], parameters, keep=keep)
                index = block.span.start + example
                require_finite_gradients(all_finite(found.values()), [index])
                for name, gradient in found.items():
                    collectors[name].store(example, output, gradient)
            rows.append(outputs.detach())
        factors = [collector.factors() for collector in collectors.values()]
        total: dict[str, Tensor] = {}
        if weights is not None:
            for own in filter(None, factors):
                (sums,) = own.weighted_sums([slice(0, len(own))], weights)
                total |= own.unpack(sums)
        return Collected(block.span, [*factors], torch.cat(rows), total)

    def fill_blocks(
        self,
        plan: Plan,
        data: BatchList,
        other: BatchList | None,
        fill: Callable[[Collected, Collected | None], None],
        weights: Tensor | None = None,
    ) -> None:
        """Collect the factors of blocks of examples, and pass every pair of blocks to ``fill``.

        Without ``other`` these are the pairs on and above the diagonal; a block with itself has no
        right side. With weights (n, c) such a block has the gradient of the weighted outputs.
        """
        sizes = plan.block_size, plan.batch_size
        for block in data.blocks(*sizes):
            left = self.collect(block, plan, None if weights is None else weights[block.span])
            if other is None:
                fill(left, None)
            for columns in (data if other is None else other).blocks(*sizes):
                if other is not None or columns.span.start > block.span.start:
                    fill(left, self.collect(columns, plan))
            del left  # before the factors of the next block

    def fill(
        self, layer: str, left: Collected, right: Collected | None, block: KernelBlock, plan: Plan
    ) -> None:
        """Overwrite a block with the kernel of one layer; a symmetric block has no right side."""
        symmetric = right is None
        right = left if right is None else right
        indices = self.group_indices[layer]
        stripe = stripe_size(len(left.outputs), block.rows_per_example)
        contraction = Contraction(plan.tile_bytes, stripe, symmetric)
        if not indices:
            block.values.zero_()
        with without_autocast(self.device):
            for rank, index in enumerate(indices):
                contraction.add(left.factors[index], right.factors[index], block, rank == 0)
        if symmetric and indices:
            block.mirror(stripe)


def prepare(
    model: nn.Module,
    data: BatchList,
    options: EngineOptions,
    fallback: Checked | None = None,
) -> KernelEngine:
    """Run the model with one example of the first batch, and group the uses of its parameters.

    The example is drawn if batches are checked. Its run is then compared with the first batch.
    ``fallback`` says why plain autograd takes one example at a time.
    """
    inner = unwrap(model)
    require_fixed_mode(inner)
    ownership = _of_selected_layers(own_parameters(inner, options.layers, options.params))
    choice = resolve_outputs(options.outputs)
    readout = resolve_readout(options.readout)
    recorder = ModelRecorder(inner, ownership, readout, choice, Checker(options.check))
    example = 0
    if fallback is None and options.check:
        example = recorder.checker.draw_single_rows(len(data.batches[0]))[0]
    one = data.batches[0].take(slice(example, example + 1))
    if fallback is None:
        require_real(ownership)
        single_run = recorder.run_single(one, example if options.check else None)
        groups = group_parameters(single_run.uses, ownership)
    else:
        single_run = ForwardRun(recorder.usable_outputs(one), [], 0)
        groups = dense_groups([], ownership.parameters)
        options = replace(options, batch_size=1)
        require_finite(inner, single_run.outputs, one, [example])
    dtype = wide_dtype(options.dtype or single_run.outputs.dtype)
    device = single_run.outputs.device
    layers = ownership.layers
    return KernelEngine(recorder, layers, groups, single_run, dtype, device, options, fallback)


def _of_selected_layers(ownership: Ownership) -> Ownership:
    """The same without parameters of other layers, whose uses need not be recorded."""
    wanted = {name for names in ownership.layers.values() for name in names}
    parameters = {name: p for name, p in ownership.parameters.items() if name in wanted}
    return replace(ownership, parameters=parameters)


def _add_passes(
    recorder: ModelRecorder,
    collectors: list[Collector],
    plan: Plan,
    run: ForwardRun,
    rows: slice,
    row_weights: RowWeights | None,
    keep_graph: bool,
) -> None:
    """Pass the gradients of all outputs to the collectors, and check the rows of the batch."""
    _require_same_calls(plan, run)
    for collector in collectors:
        collector.begin(rows, [run.uses[index] for index in collector.group.uses])
    wanted = frozenset(index for collector in collectors for index in collector.group.uses)
    size = _outputs_per_pass(plan, run)
    # A single joint pass of all outputs also makes the second pass of the check of rows.
    joint_check = row_weights if size == run.outputs.shape[1] else None
    added = _add_joint_passes(recorder, collectors, run, size, wanted, joint_check)
    if row_weights is not None and not (added and joint_check):
        check_rows(recorder, run, row_weights)
    if not added:
        for output, gradients in run.passes(keep_graph, wanted):
            for collector in collectors:
                collector.add(output, [gradients[index] for index in collector.group.uses])
            del gradients  # before those of the next output
    for collector in collectors:
        collector.end()


def _add_joint_passes(
    recorder: ModelRecorder,
    collectors: list[Collector],
    run: ForwardRun,
    size: int,
    wanted: frozenset[int],
    row_weights: RowWeights | None,
) -> bool:
    """Pass gradients of several outputs at a time to the collectors; return whether they have them.

    They have none if a pass takes one output, or if torch cannot vectorise the first joint pass. An
    error of a later pass is passed on. With ``row_weights`` rows are checked in the same pass.
    """
    count = run.outputs.shape[1]
    if size == 1:
        return False
    for start in range(0, count, size):
        outputs = range(start, min(start + size, count))
        extra_seed = None if row_weights is None else row_weights.second_seed
        try:
            arrived = run.joint_passes(outputs, wanted, extra_seed)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            if start > 0:
                raise
            return False
        if row_weights is not None:
            second = [gradients[-1] for gradients in arrived]
            arrived = [gradients[:-1] for gradients in arrived]
            first = [_weighted(row_weights.seed[0], part) for part in arrived]
            compare_rows(recorder, run.first_uses(wanted), first, second, row_weights)
        by_use = run.by_use(arrived, wanted)
        together = [tuple(part for part in use if part is not None) for use in by_use]
        for collector in collectors:
            collector.add_joint(outputs, [together[index] for index in collector.group.uses])
        del arrived, by_use, together
    return True


def _weighted(weights: Tensor, gradients: Tensor) -> Tensor:
    """The weighted sum of the gradients of all outputs."""
    flat = gradients.flatten(1)
    if flat.dtype != weights.dtype:
        kind = torch.promote_types(weights.dtype, flat.dtype)
        weights, flat = weights.to(kind), flat.to(kind)
    return (weights @ flat).view(gradients.shape[1:])


def _outputs_per_pass(plan: Plan, run: ForwardRun) -> int:
    """Number of outputs in one pass: several if one output would not use the machine fully."""
    n, count = run.outputs.shape
    # Gradients of all outputs, intermediate gradients, and the kept copies.
    limit = min(_FEW_BYTES.get(run.outputs.device.type, 0), plan.spare_bytes // 3)
    if 0 < run.output_grad_bytes <= limit:
        return count
    if run.outputs.device.type != "cuda" or run.output_grad_bytes == 0 or n > _FILLING_EXAMPLES:
        return 1
    limit = min(max(_JOINT_BYTES[0], plan.predicted_bytes), _JOINT_BYTES[1])
    size = min(-(-_JOINT_EXAMPLES // n), limit * count // run.output_grad_bytes)
    passes = -(-count // max(1, min(count, size)))
    return -(-count // passes)  # about equally many each


def _require_same_calls(plan: Plan, run: ForwardRun) -> None:
    if len(run.uses) != plan.use_count:
        raise CannotSplitError(
            f"model: expected the same {plan.use_count} uses of parameters for all examples, got "
            f"{len(run.uses)}: the calls of the model depend on the data"
        )
