"""`Trace`: record or replace named values of a running model."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from foretell.errors import UsageError, as_path
from foretell.insight.address import View, make_view, parse_address
from foretell.insight.recorded_values import Budget, RecordedValues, element_bytes, save_values
from foretell.insight.replacement import STAGES, OwnThread, ReplacedValue, Replacement, StagedAttention, in_backward
from foretell.language_model import LanguageModel, decoder_of
from foretell.model.attention import attention_weights
from foretell.model.cache import CachedKVView
from foretell.model.decoder import Decoder
from foretell.model.structure import Structure, Value, model_structure
from foretell.model.surgery import is_compiled
from foretell.model.surgery import replace as replace_modules
from foretell.paths import select as select_names
from foretell.paths import starred, suggest
from foretell.storage.files import check_target
from foretell.typesetting.document import DocumentSection, Paragraph, Table
from foretell.typesetting.html import Shown
from foretell.typesetting.numbers import format_bytes

TRACE_BYTES = 2 << 30
LAST_QUERIES = 64  # because a product of fewer than four rows may round differently from a product of many
GRADIENT = "grad:"
LISTED = "; `foretell trace MODEL --list` shows all names"

logger = logging.getLogger(__name__)


def trace_names(model: LanguageModel | Decoder) -> list[str]:
    """Every name that a trace of this model can record, derived values included."""
    return model_structure(decoder_of(model)).names


class Trace(Shown):
    """Records named values of every call of a model inside the block, in forward passes, generation or training.

        with Trace(model, "trunk.blocks.*.attention.core.weights") as trace:
            model.decoder(ids)
        trace["trunk.blocks.0.attention.core.weights"]  # (B, H, T, S)

    Names are module paths (`trace_names` lists all); `select` takes globs of names. The model runs its own forward with
    hooks: its logits are bit-identical to an untraced pass. Values are detached and stay on the device.
    Derived values are computed on each access; `replacement.py` states how close they are to the fused kernel's.

    replace: a tensor or a function of the value, by glob; the rest of the pass uses the replacement. Replacing scores
    or weights swaps that layer's core for an explicit one inside the block.
    gradients: also record, under `grad:<name>`, the gradient of each selected value in the last backward. Attention
    scores and weights then come from an explicit core; a norm's mean and variance have no gradient.
    budget_bytes: the limit for recorded values; a pass or call that would exceed it raises `UsageError`.
    structure: the decoder's structure when the block is entered, for a caller that traces many passes.
    Only calls from the thread that entered the block are recorded and changed; other threads use the unchanged model.
    notes: lines about changes of the pass by the trace; they are also logged.
    """

    def __init__(
        self,
        model: LanguageModel | Decoder,
        select: str | Sequence[str] = (),
        *,
        replace: Mapping[str, Replacement] | None = None,
        gradients: bool = False,
        budget_bytes: int = TRACE_BYTES,
        structure: Structure | None = None,
    ):
        self.decoder = decoder_of(model)
        self.tokenizer, self.memory = (
            (model.tokenizer, model.memory) if isinstance(model, LanguageModel) else (None, None)
        )
        self.gradients, self.budget_bytes = gradients, budget_bytes
        self._known_structure = structure
        self.structure = structure or model_structure(self.decoder)
        self.selected = select_names(select, self.structure.names, LISTED)
        given = replace or {}
        if not isinstance(given, Mapping) or not all(
            isinstance(new, Tensor) or callable(new) for new in given.values()
        ):
            raise UsageError("replace maps names of values to tensors, or to functions of the old value")
        self.replacements = {
            name: replacement
            for glob, replacement in given.items()
            for name in select_names(glob, self.structure.names, LISTED)
        }
        self._begin()

    def _begin(self) -> None:
        self.notes: list[str] = []
        self._values = RecordedValues(Budget(self.budget_bytes))
        self._ids: deque[Tensor] = deque(maxlen=2)  # two entries show that there was more than one pass
        self._thread = OwnThread()

    def __enter__(self) -> Self:
        self._begin()
        self.structure = self._known_structure or model_structure(self.decoder)
        with ExitStack() as stack:
            stack.enter_context(run_eagerly(self.decoder, self.notes))
            if cores := self._cores_to_open():
                stack.enter_context(replace_modules(self.decoder, cores, StagedAttention))
                self.structure = model_structure(self.decoder)  # the stages of an explicit core are modules now
            for name, replacement in self.replacements.items():
                stack.enter_context(self._replace(name, replacement))
            by_module: defaultdict[str, list[Value]] = defaultdict(list)
            for value in self._recorded(self.selected):
                by_module[value.module].append(value)
            for path, values in by_module.items():
                module = self.decoder.get_submodule(path)
                stack.enter_context(module.register_forward_hook(partial(self._record, values)))
            stack.enter_context(self.decoder.embed.register_forward_pre_hook(partial(self._foresee, False)))
            if self.structure.memory:
                encoder_embed = self.decoder.get_submodule(self.structure.memory_stream[0])
                stack.enter_context(encoder_embed.register_forward_pre_hook(partial(self._foresee, True)))
            self._restore = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._restore.__exit__(kind, error, traceback)

    def __getitem__(self, name: str) -> Tensor:
        """The value of a name with exactly one call. Raises `UsageError` for any other number of calls."""
        values = self.calls(name)
        if not values:
            raise UsageError(f"{name} was computed 0 times; call the model itself, not what torch.compile makes of it")
        if len(values) != 1:
            raise UsageError(f"{name} was computed {len(values)} times; trace.calls('{name}') has all values in order")
        return values[0]

    def calls(self, name: str) -> list[Tensor]:
        """The values of all calls, in order, with the shapes that the module returned."""
        plain = name.removeprefix(GRADIENT)
        if plain not in self.structure.values:
            raise UsageError(f"nothing here is named '{plain}'{suggest(plain, self.structure.names)}")
        if plain not in self.selected:
            raise UsageError(f"{plain} was not recorded; add it to what the trace selects")
        value = self.structure.values.get(name)  # None for a gradient
        if value is None or not value.is_derived:
            return self._values.calls(name)
        operands = [self._values.calls(operand.name) for operand in value.operands]
        return [value.compute(call) for call in zip(*operands, strict=True)]

    def last_weights(self, name: str) -> Tensor:
        """The last query's attention weights (B, H, S), bit-identical to `self[name][:, :, -1]`.

        If they are derived, only the last queries' weights are computed, because all are T times S numbers per head.
        """
        value = self.structure[name]
        if value.derivation is None or value.derivation.compute is not attention_weights:
            return self[name][:, :, -1]
        query, key, mask = (self._values.calls(operand.name)[-1] for operand in value.operands)
        return value.compute((query[:, :, -LAST_QUERIES:], key, mask.last_queries(LAST_QUERIES)))[:, :, -1]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def names(self) -> list[str]:
        """The names that have a value, gradients last."""
        recorded = set(self._values.names())
        values = [name for name in self.selected if recorded.issuperset(each.name for each in self._recorded([name]))]
        gradients = (f"{GRADIENT}{name}" for name in self.selected)
        return [*values, *(name for name in gradients if name in recorded)]

    def is_derived(self, name: str) -> bool:
        """True if the value is recomputed from recorded values; False if a module returns it."""
        return name in self.structure.values and self.structure[name].is_derived

    def view(self, address: str, row: int = 0) -> View:
        """A row of a recorded value, or its part at the leading indices, for a notebook or the terminal.

        `trace.view("trunk.blocks.0.attention.core.weights[0]")` shows the attention weights of head 0.
        """
        wanted = parse_address(address)
        tensor = self[wanted.name]
        memory_tokens = self.memory.pieces if self.memory and row == 0 else ()
        return make_view(tensor, wanted, self.structure, row, self._tokens(row), memory_tokens)

    def document(self) -> DocumentSection:
        """The recorded values: a row per name, with `*` for the layer."""
        rows: dict[str, tuple[str, ...]] = {}
        for name in self.names():
            value = self.structure.values.get(name.removeprefix(GRADIENT))
            dims = " ".join(value.dims) if value else ""
            held = [] if self.is_derived(name) else self._values.calls(name)
            shapes = {"×".join(map(str, call.shape)) for call in held if isinstance(call, Tensor)}
            rows[starred(name)] = starred(name), dims, ", ".join(sorted(shapes)) or "derived"
        size = format_bytes(self.held_bytes)
        table = Table(("value (*: any layer)", "dimensions", "shape"), list(rows.values()))
        return DocumentSection(f"{len(self.names()):,} values, {size}", [table, *map(Paragraph, self.notes)])

    @property
    def held_bytes(self) -> int:
        """Total bytes of the recorded values."""
        return self._values.budget.total

    def save(
        self, path: str | Path, metadata: Mapping[str, str] | None = None, *, overwrite: bool = False
    ) -> list[str]:
        """Write all values as safetensors, with derived ones listed in the metadata, and return the keys.

        overwrite: also over a file that is not an earlier trace.
        A name with several calls has one key per call: `name#0`, `name#1`. Raises `UsageError` over the budget.
        """
        target = check_target(as_path("the path", path), overwrite=overwrite)
        values = ((name, self.calls(name), self.is_derived(name)) for name in self.names())
        return save_values(values, target, Budget(self.budget_bytes), metadata or {})

    def _cores_to_open(self) -> list[str]:
        """The cores whose derived values are replaced or get gradients."""
        wanted = dict.fromkeys(self.replacements, "replaced")
        wanted |= {name: "to have gradients" for name in self.selected if self.gradients and name not in wanted}
        reasons: dict[str, str] = {}
        for name, reason in wanted.items():
            core, _, stage = name.rpartition(".")
            if self.structure[name].is_derived and self.structure[core].formula == "attention" and stage in STAGES:
                reasons.setdefault(core, f"{stage} are {reason}")
        for core, reason in reasons.items():
            self.notes.append(f"{core} is replaced by an explicit core in this trace, since its {reason}")
            logger.info(self.notes[-1])
        return list(reasons)

    def _replace(self, name: str, replacement: Replacement):
        value = self.structure[name]
        if value.is_derived:
            raise UsageError(f"{name} cannot be replaced; replace the output of {name.rpartition('.')[0]} instead")
        return ReplacedValue(value, replacement, self._thread).register(self.decoder.get_submodule(value.module))

    def _recorded(self, names: Sequence[str]) -> list[Value]:
        """The values to record for these names, each once; for a derived value, its operands."""
        values: dict[str, Value] = {}
        for name in names:
            value = self.structure[name]
            values |= {operand.name: operand for operand in (value.operands if value.is_derived else (value,))}
        return list(values.values())

    def _record(self, values: list[Value], _: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        # In a backward pass, activation checkpointing repeats calls that are already recorded
        if in_backward() or not self._thread.is_current():
            return
        for value in values:
            tensor = value.read(inputs, output)
            call = self._values.add(value.name, tensor)
            if self.gradients and isinstance(tensor, Tensor) and tensor.requires_grad and value.name in self.selected:
                tensor.register_hook(partial(self._values.put, f"{GRADIENT}{value.name}", call))

    def _tokens(self, row: int) -> list[str]:
        """The texts of a row's tokens; empty without a tokenizer or after more than one call."""
        if self.tokenizer is None or len(self._ids) != 1 or not 0 <= row < len(self._ids[0]):
            return []
        size = self.tokenizer.vocab_size
        return [self.tokenizer.text_of(token_id) for token_id in self._ids[0][row].tolist() if token_id < size]

    def _foresee(self, of_memory: bool, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Refuse a pass before it starts if it has more ids than the budget allows. of_memory: an encoder pass."""
        if not self._thread.is_current():
            return
        ids = inputs[0]
        if not of_memory:
            self._ids.append(ids)
        size = element_bytes(self.decoder.dtype, self.decoder.device) * (2 if self.gradients else 1)
        inside = f"{self.structure.memory}."  # "." in a model without a memory
        values = [value for value in self._recorded(self.selected) if f"{value.name}.".startswith(inside) == of_memory]
        self._values.budget.foresee(values, self.structure, ids, size)


Call = tuple[tuple[Any, ...], Tensor]  # inputs and output of one call


@contextmanager
def run_eagerly(model: nn.Module, notes: list[str]) -> Generator[None]:
    """Run compiled modules eagerly inside the block, then measure the difference to their compiled output.

    After the block, the first call of each compiled module is repeated in compiled form, and `notes` gets a line.
    """
    if not any(map(is_compiled, model.modules())):  # the setting is global, so overlapping traces would change it
        yield
        return
    # A wrapper by torch.compile also runs eagerly; its difference is not measured
    compiled = {path: module for path, module in model.named_modules() if module._compiled_call_impl is not None}
    first_calls: dict[nn.Module, Call] = {}

    def keep_first(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        first_calls.setdefault(module, (inputs, output.detach()))

    with ExitStack() as stack:
        for module in compiled.values():
            stack.enter_context(module.register_forward_hook(keep_first))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield
    for path, module in compiled.items():
        difference = _difference(module, first_calls.get(module))
        notes.append(f"{path or 'the decoder'} is compiled and ran eagerly here; {difference}")
        logger.info(notes[-1])


@torch.no_grad()
def _difference(module: nn.Module, call: Call | None) -> str:
    if call is None:
        return "it was not called"
    inputs, output = call
    if any(isinstance(argument, CachedKVView) for argument in inputs):
        return "the difference was not measured: the cache has changed since"
    largest = float((module(*inputs) - output).abs().max())
    return f"its compiled output differs by at most {largest:.2g}"
