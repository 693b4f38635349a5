"""Sizes and orders that a plan would not choose for a small network."""

from dataclasses import replace

from theodolite.engine import kernel_engine
from theodolite.engine import plan as planning

CHOSEN, MADE = planning.choose_route, planning.make_plan


def force(
    monkeypatch,
    *,
    route=None,
    tile_bytes=None,
    stripes=None,
    outputs_per_pass=None,
    block_size=None,
):
    """Let plans of the test take these where they are possible; None leaves the choice to them."""

    def forced(sizes):
        return route if route in planning.contraction_costs(sizes) else CHOSEN(sizes)

    def in_blocks(*given):
        plan = MADE(*given)
        return replace(plan, block_size=block_size, batch_size=min(plan.batch_size, block_size))

    if route is not None:
        monkeypatch.setattr(planning, "choose_route", forced)
    if block_size is not None:
        monkeypatch.setattr(kernel_engine, "make_plan", in_blocks)
    if tile_bytes is not None:
        monkeypatch.setattr(planning, "_TILE_BYTES", {"cpu": tile_bytes})
    if stripes is not None:
        monkeypatch.setattr(
            kernel_engine, "stripe_size", lambda examples, _rows: -(-examples // stripes)
        )
    if outputs_per_pass is not None:
        monkeypatch.setattr(
            kernel_engine,
            "_outputs_per_pass",
            lambda plan, run: min(run.outputs.shape[1], outputs_per_pass),
        )
