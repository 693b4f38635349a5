"""One of several processes of a launcher: measures its part, saves what it got."""

import datetime
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import get_rank, get_world_size
from typer.testing import CliRunner

import theodolite
from tests.distributed.cases import CASES, MONITOR, SHARES, double_blobs, shares_of, split
from tests.survey.subjects import mlp
from theodolite._distributed import Processes
from theodolite.cli import app
from theodolite.engine import kernels
from theodolite.errors import MemoryLimitError
from theodolite.surveys import context


def numbers(record) -> dict:
    """What must agree between any number of processes."""
    kept = ("rows", "curves", "skipped", "warnings", "layers", "data")
    return {key: record.contents[key] for key in kept} | {"arrays": record.arrays}


def surveys() -> dict:
    found = {}
    for name, case in CASES.items():
        for shares in shares_of(name, get_world_size()):
            model = case.model()
            x, y = split(case.data(), shares, get_rank())
            wrapped = nn.parallel.DistributedDataParallel(model) if shares[-1] else model
            for buffer in model.buffers():  # as after training: those of the first process count
                buffer.mul_(1 + get_rank())
            before = [buffer.clone() for buffer in model.buffers()]
            options = case.options | {"truth": case.truth(x)}
            record = theodolite.survey(wrapped, case.feed(x, y), seconds=None, **options).record
            found[name, shares] = numbers(record)
            for buffer, saved in zip(model.buffers(), before, strict=True):
                assert torch.equal(buffer, saved)
    return found


def dealt() -> dict:
    """What this process does of passes that processes deal out: layers, or numbers of examples."""
    done = {"feature_grams": [], "forward_backward_kernels": [], "iterate_batches": []}
    real = {name: getattr(context, name) for name in done}

    def noted(name):
        def call(*args, **options):
            done[name].append(args[2] if len(args) > 2 else len(args[0]))
            return real[name](*args, **options)

        return call

    for name in done:
        setattr(context, name, noted(name))
    try:
        for name in ("all layers wide", "all families"):
            case = CASES[name]
            theodolite.survey(case.model(), case.data(), seconds=None, **case.options)
    finally:
        for name, function in real.items():
            setattr(context, name, function)
    return done


def copies() -> dict:
    """The same data in every process, and random states that differ."""
    case = CASES["all families"]
    torch.manual_seed(get_rank())
    options = case.with_options(seed=5, seconds=None) | {"truth": case.truth(case.data()[0])}
    found = theodolite.survey(case.model(), case.data(), **options)
    return numbers(found.record)


def monitor(folder: Path) -> dict:
    """Train with DDP and watch; the states at measured steps go with the numbers."""
    model = mlp().double()
    wrapped = nn.parallel.DistributedDataParallel(model)
    x, y = split(double_blobs(), SHARES[get_world_size()][0], get_rank())
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    states = {}
    with theodolite.Monitor(wrapped, (x, y), folder=folder / "steps", **MONITOR) as watch:
        for step in range(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(wrapped(x), y).backward()
            optimizer.step()
            states[step] = {name: value.clone() for name, value in model.state_dict().items()}
            watch.step(step)
    watch.history.save(folder / f"saved-{get_rank()}")
    watch.history.to_html(folder / f"page-{get_rank()}.html")
    records = {record.contents["step"]: numbers(record) for record in watch.history.run.steps}
    return {"records": records, "states": states}


THREE_LAYERS = ["inner.0", "inner.2", "inner.4"]  # each of three processes has one


class Failing(nn.Module):
    """Raises in the last process after so many calls."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(*mlp(), nn.Tanh(), nn.Linear(3, 3)).double()
        self.left = calls

    def forward(self, x):
        self.left -= 1
        if self.left < 0 and get_rank() == get_world_size() - 1:
            raise RuntimeError("the last device ran out of luck")
        return self.inner(x)


def failures(folder: Path) -> dict:
    """Messages of everything that can go wrong in one process, one after the other."""
    x, y = split(double_blobs(), SHARES[get_world_size()][0], get_rank())
    last = get_rank() == get_world_size() - 1
    other = mlp(seed=1 if last else 0).double()
    blocked = folder / "a file"
    blocked.write_text("in the way")
    broken = torch.where(x > 1.0, torch.nan, x) if last else x

    def watch():
        theodolite.Monitor(mlp().double(), (x, y), folder=blocked, families="kernel").measure(0)

    calls = {
        "at once": lambda: theodolite.survey(Failing(0), (x, y), layers=THREE_LAYERS),
        "before features": lambda: theodolite.survey(Failing(2), (x, y), layers=THREE_LAYERS),
        "labels": lambda: theodolite.survey(mlp().double(), (x, y - 5 if last else y)),
        "nan": lambda: theodolite.survey(mlp().double(), (broken, y), families="covariance"),
        "weights": lambda: theodolite.survey(other, (x, y)),
        "seed": lambda: theodolite.survey(mlp().double(), (x, y), seed=get_rank()),
        "option": lambda: theodolite.survey(mlp().double(), (x, y), permutations=-1 if last else 2),
        "empty": lambda: theodolite.survey(mlp().double(), (x[:0], y[:0])),
        "folder": watch,
    }
    found = {name: _message(call) for name, call in calls.items()} | {"skipped": _skipped(x, y)}
    for passes in (6, 13):  # after features, after covariances
        survey = theodolite.survey(Failing(passes), (x, y), layers=THREE_LAYERS)
        found[f"after {passes} passes"] = numbers(survey.record)
    return found


def _message(call) -> tuple[str, str]:
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def _skipped(x, y) -> dict:
    """One process lacks the memory for exact kernels: all fall back to the sketch."""
    real = kernels.tangent_kernels

    def refused(*args, **options):
        if get_rank() == get_world_size() - 1:
            raise MemoryLimitError("too little memory here")
        return real(*args, **options)

    kernels.tangent_kernels = refused
    try:
        found = theodolite.survey(mlp().double(), (x, y), families=["tangent", "gradient"])
        return {"routes": found.record.contents["routes"], **numbers(found.record)}
    finally:
        kernels.tangent_kernels = real


def absent() -> tuple[str, str]:
    """Only the first process calls: it does not wait for ever."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=2))
    if get_rank() == 0:
        call = lambda: theodolite.survey(mlp().double(), double_blobs(), options={"group": group})  # noqa: E731
        return _message(call)
    time.sleep(3)
    return "", ""


def alone() -> dict:
    """A survey of one process among several, and of a group of one."""
    if get_rank() > 0:
        return {}
    case = CASES["all families"]
    options = case.with_options(group=None) | {"truth": case.truth(case.data()[0])}
    found = theodolite.survey(case.model(), case.data(), **options)
    assert Processes.of(None).alone
    return numbers(found.record)


def command(folder: Path, rank: int) -> tuple[int, str, bool]:
    """Exit code and words of ``theodolite survey``, which makes and leaves a group by itself.

    Also whether PyTorch still holds that group, which would abort the process at its end.
    """
    for name in ("torch.distributed.nn", "torch.distributed.nn.functional"):
        sys.modules.pop(name, None)  # the command starts without them
    network = Path(__file__).parents[1] / "networks.py"
    words = ["survey", f"{network}:mlp", "digits", "--arg", "sizes=[64,8,10]"]
    words += ["--examples", "40", "--family", "kernel", "--json", "--output", str(folder)]
    result = CliRunner().invoke(app, words)
    from torch.distributed.nn.functional import all_gather

    (group,) = all_gather.__defaults__
    return result.exit_code, result.stdout, group is not None


def measure(folder: Path, rank: int) -> None:
    """All of it in one group, saved for the test."""
    found = {
        "surveys": surveys(),
        "dealt": dealt(),
        "copies": copies(),
        "monitor": monitor(folder),
        "failures": failures(folder),
        "alone": alone(),
    }
    found["copies again"] = copies()  # after all these failures nobody is out of step
    found["absent"] = absent()
    torch.save(found, folder / f"found-{rank}.pt")
