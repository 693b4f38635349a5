"""Reasons why a number is missing or needs care, each kind with its words.

Surveys and rankings name the kind and its facts. The record keeps both the kind (``note``) and the
words. Programs compare kinds, and tables print one line for a reason that concerns many layers.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from theodolite.advice.sentences import layer_name
from theodolite.errors import (
    CaptureError,
    MemoryLimitError,
    NotFiniteError,
    ProcessError,
    TheodoliteError,
)
from theodolite.records import FAMILIES, MEASURES, Note, listed, plain

_WORDS: Mapping[Note, str] = {
    # the data
    Note.NO_TARGETS: "the data have no targets to align with",
    Note.NO_LOSS: "there are no targets: gradients need a loss, and a loss needs targets",
    Note.SEQUENCE_TARGETS: "targets are sequences: pass loss= with one number per example",
    Note.NO_EXAMPLE_LABELS: "whole examples have no labels of their own: pass groups=, or"
    " unit='token'",
    Note.SAME_LABEL: "all examples have the same label",
    Note.FEWER_THAN_FOUR: "fewer than four examples",
    Note.FEW_EXAMPLES: "{n} examples for {width} features: a linear probe fits any labels; compare"
    " the number with its chance level",
    Note.NOISY: "{n} examples are few for this number; compare it with its chance level",
    Note.SINGLE_EXAMPLES: "{single} of {classes} classes have a single example: left out",
    # the model
    Note.NO_OUTPUT_ROWS: "the model gives no row of outputs per example: {problem}",
    Note.NO_OUTPUT_POSITIONS: "labels per position need outputs per position: {problem}",
    Note.NO_MODEL: "no model was given",
    Note.NO_PARAMETERS: "no layer has trainable parameters",
    Note.NO_MATRICES: "the forward pass calls no linear or convolutional layer",
    Note.BLOCKS: 'the layers shown are blocks; layers="**.{last}" shows linear layers inside them',
    # features and weights of a layer
    Note.ZERO_FEATURES: "all features are zero",
    Note.CONSTANT_FEATURES: "the features are constant",
    Note.NOT_FINITE: "the features are not finite: the run has diverged",
    Note.LONG_ROWS: "{few} of {n} rows of features have {share} of the total squared norm, so"
    " they dominate the numbers of this layer",
    Note.ISOTROPIC: "the weights are isotropic",
    Note.ONE_INPUT: "the layer has a single input, and so no directions to compare",
    Note.FEW_FILTERS: "too few filters to judge directions: {filters}, at least {least} are needed",
    Note.NO_DIRECTIONS: "the strongest directions of the data have equal variances",
    Note.NO_PATCH: "no whole patch fits: kernels span {spans}, their input is {sizes}",
    # kernels and gradients
    Note.CONSTANT_KERNEL: "the tangent kernel or the labels are constant",
    Note.UNDEFINED: "undefined for these data",
    Note.SKETCHED: "kernels of {n} examples and {outputs} outputs would take {exact:.1e}"
    " multiply-adds, more than {most:.0e}; a sketch takes {sketched:.1e}",
    Note.NOT_IN_SKETCHES: "stable_rank and correlation need the kernels themselves",
    Note.UNRESOLVED: "the sketch is too noisy: the norm of the kernel is below its error",
    Note.PEAK_UNRESOLVED: "the sketch is too noisy to say which layer has the peak",
    Note.PEAK_UNDEFINED: "the alignment of a layer is undefined",
    Note.NO_BALANCE: "the backward loss of information never exceeds the forward one",
    Note.ZERO_GRADIENTS: "all gradients are zero, or every class has a single example",
    Note.ZERO_VECTORS: "all features are zero, or every class has a single example",
    # the loss
    Note.LOSS_NOT_FINITE: "the loss of an example is nan (not a number)",
    Note.NO_GAIN: "the loss of the sequences has not fallen clearly since the first measurement",
    # time and memory
    Note.INTERRUPTED: "interrupted before it was measured",
    Note.NOT_DUE: "due once in {distance} measurements, and at the last one",
    Note.NO_TIME: "{fewest} examples would take about {expected:.0f} s, {left:.0f} s are left;"
    " seconds={total} measures them",
    Note.COVARIANCE_BYTES: "its covariance needs {needed:,} bytes, {free:,} are left of"
    " memory_limit",
    Note.UNIT_GRADIENT_BYTES: "not measured: gradients of unit length do not fit into memory_limit",
    Note.PICTURE_BYTES: "not drawn: output gradients of two examples do not fit into memory_limit",
    Note.FEWER_FOR_MEMORY: "{most} of {wanted} examples, to stay within the memory limit",
    Note.FEWER_FOR_TIME: "{few} of {wanted} examples, since long sequences are slow on a CPU;"
    ' sizes={{"tangent": {wanted}}} uses all',
    Note.READ_IN_PART: "{given:,} examples were read in {seconds:.0f} s, the others were not read;"
    " pass seconds=None to read all, or examples= for a number",
    Note.TAKEN_AS_LABELS: "whole numbers in {kind}, and the model has {outputs} outputs: used as"
    " class labels",
    Note.NEXT_TOKENS: "the data have no labels: the next tokens are used as labels",
    Note.INPUTS_FITTED: "{change}",
    Note.POSITIONS: "{text}",
    Note.HELD_OUT_COPIES: "{count} held-out examples are copies of training examples, or of each"
    " other: left out",
    Note.HELD_OUT_CLASSES: "{count} held-out examples have classes that the training data do not"
    " have: left out",
    Note.CUT: "To end within {limit:g} s, the survey used {parts}. Pass seconds=None (in a terminal"
    " --seconds 0) to use all",
    # models for a new task
    Note.SINGLE_CLASSES: "{alone} of {classes} classes have a single example. Each counts as wrong"
    " for every model, because no other example can teach it.",
    Note.FEW_LABELS: "Few labels: {few} of {classes} classes have fewer than {enough} examples (the"
    " smallest has {smallest}). Label more before you trust the order.",
    Note.UNUSED_ENTRY: "{option}= has an entry for {key!r}, which is none of the models: it was not"
    " used.",
    Note.NOTHING_TRAINABLE: "No parameter below the head is trainable: the forecast is that of a"
    " linear probe of the features.",
    Note.FEWER_EXAMPLES: "All models use {count:,} of {wanted:,} examples, because of the limit of"
    " {seconds:g} s.",
    Note.FEWER_FOR_SECONDS: "Tangent kernel of {count} of {wanted} examples, because of the limit"
    " of {seconds:g} s.",
    Note.BEYOND_SECONDS: "Took longer than the limit of {seconds:g} s. Starting processes, building"
    " models and measuring their fewest examples are never cut. Of models that are built one at a"
    " time only the first is timed beforehand. Other programs may have slowed the machine.",
    Note.FEATURES_ALONE: "The tangent kernel was not measured, so this model is judged by its"
    " features alone: {why}",
    Note.TANGENT_MEMORY: "it needs more memory than allowed; fewer tangent examples or a"
    " higher memory limit may help",
    Note.DEVICE_MEMORY: "the device has too little free memory; fewer tangent examples may help",
    Note.LOW_FORECASTS: "Forecasts and learning curves of {models} may be far too low: more than"
    " {share:.0f} % of the variance of the labels stays unexplained, and fine-tuning may learn new"
    " features.",
    Note.JUDGED_BY_FEATURES: "Judged only by features: {models}. The others are judged with the"
    " tangent kernel, whose errors are lower. So their places in the ranking may be too low.",
    Note.PROBES_DISAGREE: "Linear probes rank {probes} first; the tangent kernel ranks {kernel}"
    " first.",
    Note.ONE_SIZE: "All models have the same size, so a ranking by size is not possible.",
    Note.ORDER_OF_SIZE: "The ranking equals the ranking by number of parameters, largest first. For"
    " these models you would get the same order without measuring.",
    Note.LARGEST_FIRST: "The ranking by size also starts with {largest}; below the first place the"
    " two rankings differ (Kendall's tau {tau:.2f}).",
    Note.LARGEST_NOT_FIRST: "The ranking by size starts with {largest}, whose forecast is"
    " {difference}.",
    # errors, quoted
    Note.OVER_MEMORY_LIMIT: "{message}",
    Note.VALUES_NOT_FINITE: "{message}",
    Note.MODEL_NOT_FOLLOWED: "{message}",
    Note.PROCESS_LOST: "{message}",
    Note.REFUSED: "{message}",
    Note.UNEXPECTED: "{type}: {message}",
}
# Words for several layers whose facts differ.
_SHARED: Mapping[Note, str] = {
    Note.FEW_FILTERS: "filters too few or too isotropic to distinguish alignment from chance",
    Note.FEW_EXAMPLES: "fewer examples than features, so compare it with its chance level",
    Note.NO_DIRECTIONS: "the inputs have no principal directions to compare",
}


# What errors are about; the first class that fits counts.
_ERRORS: Sequence[tuple[type[Exception], Note]] = (
    (MemoryLimitError, Note.OVER_MEMORY_LIMIT),
    (NotFiniteError, Note.VALUES_NOT_FINITE),
    (CaptureError, Note.MODEL_NOT_FOLLOWED),
    (ProcessError, Note.PROCESS_LOST),
    (TheodoliteError, Note.REFUSED),
)

_HEADINGS = {family.headline: family.heading for family in FAMILIES.values()} | dict(MEASURES)
_NAMES = {"models", "probes", "kernel", "largest"}  # facts that name models
TOO_FEW_FILTERS = _SHARED[Note.FEW_FILTERS]


class Reason(str):
    """The words of a reason, with its kind and its facts.

    Args:
        note: the kind.
        text: the words.
        facts: names, numbers and counts in the words, as plain data.
    """

    note: Note
    facts: Mapping[str, Any]

    def __new__(cls, note: Note, text: str, facts: Mapping[str, Any] | None = None) -> "Reason":
        """Words with their kind."""
        made = super().__new__(cls, text)
        made.note, made.facts = note, facts or {}
        return made

    def __reduce__(self) -> tuple[type["Reason"], tuple[Note, str, Mapping[str, Any]]]:
        return Reason, (self.note, str(self), self.facts)

    def to_entry(self) -> dict[str, Any]:
        """Plain data for a record: the kind, its facts and the words."""
        return {"note": self.note.value, "facts": dict(self.facts), "text": str(self)}


def reason(note: Note, **facts: Any) -> Reason:
    """A kind of reason with its facts in words; of a list the first four entries are named.

    Examples:
        >>> why = reason(Note.FEWER_FOR_MEMORY, most=10, wanted=50)
        >>> str(why), why.note.value
        ('10 of 50 examples, to stay within the memory limit', 'fewer-for-memory')
    """
    kept = {k: v.note.value if isinstance(v, Reason) else v for k, v in facts.items()}
    shown = {key: _in_words(key, fact) for key, fact in facts.items()}
    return Reason(note, _WORDS[note].format(**shown), kept)


def _in_words(key: str, fact: Any) -> Any:
    if isinstance(fact, list):
        return listed(map(named, fact) if key in _NAMES else fact, most=4)
    if isinstance(fact, Mapping):  # families that used fewer examples
        counts = (
            f"{few:,} of {all_:,} {' '.join(noun) or 'examples'} for {k}"
            for k, (few, all_, *noun) in fact.items()
        )
        return ", ".join(counts)
    return named(fact) if key in _NAMES and isinstance(fact, str) else fact


def named(model: str) -> str:
    """A model in a sentence; a name of several words needs quotes.

    Examples:
        >>> named("vgg16"), named("my net")
        ('vgg16', '“my net”')
    """
    return f"“{model}”" if " " in model else model


def failure(error: Exception) -> Reason:
    """The message of an error, with the kind of the error.

    Examples:
        >>> why = failure(MemoryLimitError("kernels need 8 GB"))
        >>> str(why), why.note.value
        ('kernels need 8 GB', 'over-memory-limit')
        >>> failure(KeyError("logits"))
        "KeyError: 'logits'"
    """
    return reason(error_kind(type(error)), type=type(error).__name__, message=str(error))


def error_kind(kind: type[BaseException] | None) -> Note:
    """The kind of reason for a class of errors; None means that a process died."""
    if kind is None:
        return Note.PROCESS_LOST
    return next((note for known, note in _ERRORS if issubclass(kind, known)), Note.UNEXPECTED)


def noted(contents: Mapping[str, Any]) -> list[str]:
    """The notes of a ranking in words; one that concerns several models is one line.

    Args:
        contents: contents of the record; versions before 0.3 have words without kinds.
    """
    models: dict[str, list[str]] = {}
    for model in contents["models"]:
        for note in model["notes"]:
            models.setdefault(words_of(note), []).append(model["name"])
    several = [f"{listed(map(named, names), most=4)}: {text}" for text, names in models.items()]
    return [*map(words_of, contents["notes"]), *several]


def words_of(entry: str | Mapping[str, Any]) -> str:
    """The words of a note in a record; records before version 0.3 hold the words alone."""
    return entry if isinstance(entry, str) else str(entry["text"])


def not_measured(why: Reason) -> Reason:
    """The reason as a note, with its kind."""
    return Reason(why.note, f"not measured: {why}", why.facts)


def shared_words(note: str | None) -> str | None:
    """Words of a reason for several layers; None if the words for one layer also fit."""
    known = next((entry for entry in _SHARED if entry.value == note), None)
    return None if known is None else _SHARED[known]


def count_of(number: int, noun: str) -> str:
    """A number of things: "1 layer", "3 layers"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def in_layers(names: Iterable[str], total: int) -> str:
    """Layers within a sentence, each once.

    Examples:
        >>> in_layers(["conv1", "conv2", "fc1", "fc2", "fc1"], 20)
        '4 of 20 layers (conv1, conv2, fc1 and 1 more)'
    """
    named = list(dict.fromkeys(plain(layer_name(name)) for name in names))
    return f"{len(named)} of {count_of(total, 'layer')} ({listed(named, most=3)})"


def notes_in(entries: Iterable[Mapping[str, Any]], total: int) -> list[str]:
    """One line for each reason, with its measures and layers.

    Args:
        entries: entries with "measure", "layer", "text" and "note".
        total: number of layers of the model.
    """
    said: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        text = shared_words(entry.get("note")) or str(entry.get("text", ""))
        said.setdefault(text, []).append(entry)
    lines = []
    for text, same in said.items():
        by_family = (e.get("measure") == "examples" for e in same)  # numbers of examples
        named = (
            (not own and e.get("measure")) or e.get("family") or ""
            for e, own in zip(same, by_family, strict=True)
        )
        measures = dict.fromkeys(_HEADINGS.get(name, name) for name in named)
        layers = [e["layer"] for e in same if e.get("layer") is not None]
        head = [listed(filter(None, measures), most=3)]
        head += [in_layers(layers, max(total, len(set(layers))))] if layers else []
        lines.append(f"{' in '.join(filter(None, head))}: {plain(' '.join(text.split()))}")
    return lines


_OPTIONS = (  # an argument of Python, and the option of the command
    (re.compile(r'\bsizes=(\{"\w+": \d+\})'), r"--option 'sizes=\1'"),
    (re.compile(r"\bseconds=(\d+)"), r"--seconds \1"),
    (re.compile(r'\blayers="([^"]+)"'), r"--layer '\1'"),
)
_WITH_ARGUMENTS = (Note.FEWER_FOR_TIME, Note.NO_TIME, Note.BLOCKS)


def with_options(note: str | None, text: str) -> str:
    """The words of a note in a terminal: arguments of Python become options of the command.

    Examples:
        >>> why = reason(Note.FEWER_FOR_TIME, few=16, wanted=200)
        >>> print(with_options(why.note, why).partition("; ")[2])
        --option 'sizes={"tangent": 200}' uses all
    """
    if note in _WITH_ARGUMENTS:
        for argument, option in _OPTIONS:
            text = argument.sub(option, text)
    return text


def not_shown(title: str, why: str) -> str:
    """A family without numbers, with the reason."""
    return f"{title}: not shown, {why.rstrip('.')}."


def missing_in(heading: str, where: str, why: str) -> str:
    """A number that is missing in some layers, with the reason."""
    return f"{heading[0].upper()}{heading[1:]} is undefined in {where}: {why.rstrip('.')}."


def about_positions(
    name: str,
    counted: int,
    total: int,
    *,
    shifted: bool,
    pool: str | None,
    labels: Sequence[str],
    frequent: bool,
    skips_first: bool,
    own_loss: bool,
) -> Reason:
    """Say what is measured if every position of an example has a label.

    Args:
        name: name of the task.
        counted: number of positions with a label that counts.
        total: number of all positions.
        shifted: whether labels are the inputs, one position later.
        pool: how the features of an example come from its positions; none for single positions.
        labels: labels over which single positions are drawn evenly.
        frequent: whether these are the most frequent of more labels.
        skips_first: whether the first token of an example is left out.
        own_loss: whether the user passed the loss.
    """
    parts = [f"{name}: {counted:,} of {total:,} positions have a label that counts"]
    if shifted:
        parts += ["labels are the inputs: the output at a position is compared with the next token"]
    if pool is not None:
        parts += [f"features are those of whole examples, the {pool} over positions"]
    else:
        drawn = f", drawn evenly over the labels {', '.join(labels)}" if labels else ""
        most = ", the most frequent" if labels and frequent else ""
        parts += [f"features are those of single positions{drawn}{most}"]
    if skips_first:
        parts += [
            "the first token of an example is left out, because causal models have huge"
            " activations there"
        ]
    which = "the loss given" if own_loss else "the mean loss over their positions"
    text = "; ".join([*parts, f"gradients are those of whole examples, of {which}"])
    return reason(Note.POSITIONS, text=text)
