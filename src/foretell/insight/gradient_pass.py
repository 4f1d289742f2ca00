"""A recorded pass with the gradient of one of its numbers, the target, by autograd through the same forward."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from foretell.errors import UsageError
from foretell.insight.address import Address, address_of, dimensions_of, one_row, parse_address, resolve_index
from foretell.insight.implied_values import OF_LOGITS
from foretell.insight.recorded_pass import RecordedPass, with_token_ids
from foretell.insight.trace import GRADIENT, LISTED, Trace
from foretell.language_model import LanguageModel
from foretell.model.decoder import HEAD, rows_at_once
from foretell.model.structure import Structure, Value, size_of
from foretell.numerics.norms import in_float32
from foretell.paths import suggest

MEAN_LOSS = "loss.mean"
EMBEDDING = "embed"
TARGETS_OF_LOGITS = (HEAD, "probabilities", "logprobs", "entropy", "loss", MEAN_LOSS)


@dataclass(frozen=True)
class Target:
    """The number whose gradient is taken: a name and an index, counted from 0."""

    name: str
    index: tuple[int, ...]
    ids: tuple[int, ...]
    vocabulary: int  # the tokens with a probability

    def __str__(self) -> str:
        return address_of(self.name, *self.index)

    @property
    def is_of_logits(self) -> bool:
        return self.name in TARGETS_OF_LOGITS

    @property
    def root(self) -> str:
        """The value that the target is, or is computed from."""
        return HEAD if self.is_of_logits else self.name

    @property
    def positions(self) -> range:
        """The positions whose logits the target reads."""
        if self.name == MEAN_LOSS:
            return range(len(self.ids) - 1)
        return range(self.index[0], self.index[0] + 1)

    def share(self, logits: Tensor, first: int) -> Tensor:
        """The part of the target that rows (N, V) of logits add, of the positions from `first` on."""
        if self.name == HEAD:
            return logits[0, self.index[1]]
        logprobs = in_float32(logits[:, : self.vocabulary]).log_softmax(-1)
        if self.name in ("loss", MEAN_LOSS):
            targets = torch.tensor(self.ids[first + 1 : first + 1 + len(logits)], device=logits.device)
            return -logprobs.gather(1, targets[:, None]).sum() / len(self.positions)
        if self.name == "entropy":
            return -(logprobs.exp() * logprobs).sum()
        return logprobs[0, self.index[1]].exp() if self.name == "probabilities" else logprobs[0, self.index[1]]


def make_target(model: LanguageModel, structure: Structure, ids: list[int], text: str) -> Target:
    """The target of an address. Raises `UsageError` for a number that a pass does not return or that has no index."""
    wanted = parse_address(text)
    name = HEAD if wanted.name == "logits" else wanted.name
    known = {**{each: OF_LOGITS[each] for each in TARGETS_OF_LOGITS[1:]}, **structure.values}
    if name not in known:
        problem = f"{name} is not the output, a value or a loss of a pass"
        raise UsageError(f"there is no gradient of {text}: {problem}{suggest(name, [*known]) or LISTED}")
    vocabulary = min(model.tokenizer.vocab_size, model.decoder.config.vocab_size)
    sizes = {**structure.sizes, "T": len(ids), "S": len(ids)}
    if name in OF_LOGITS:
        sizes["V"] = vocabulary
    if name in ("loss", MEAN_LOSS):
        sizes["T"] -= 1  # no token follows the last
        if not sizes["T"]:
            raise UsageError(f"{name} does not exist: the text has only one token")
    shape = [size_of(letter, sizes) for letter in known[name].dims if letter not in ("B", "1")]
    dimensions = dimensions_of(known[name], structure)
    address = with_token_ids(model, Address(name, wanted.index), dimensions)
    return Target(name, resolve_index(address, dimensions, shape), tuple(ids), vocabulary)


@dataclass(frozen=True, eq=False, kw_only=True)
class GradientPass(RecordedPass):
    """A recorded pass whose trace also has the gradient of the target for each recorded value, as `grad:<name>`."""

    target: Target
    weight_gradients: Mapping[str, Tensor]  # by path

    def has_gradient(self, name: str) -> bool:
        """True if the target depends on a value, a weight or the logits."""
        if name == HEAD:
            return self.target.is_of_logits
        return name in self.weight_gradients or bool(self.trace.calls(f"{GRADIENT}{name}"))

    def stored(self, name: str) -> Tensor:
        path = name.removeprefix(GRADIENT)
        return self.weight_gradients[path] if path in self.weight_gradients else super().stored(name)

    def logit_gradients(self, position: int) -> Tensor:
        """The gradients of the logits after a position, (V,) in float32 or better, by autograd from these logits.

        The pass does not keep them, because the logits of a chunk are released after its loss.
        """
        logits = in_float32(self.pass_logits(position)).detach()[None].requires_grad_()
        if position not in self.target.positions:
            return torch.zeros_like(logits[0])
        with torch.enable_grad():
            return torch.autograd.grad(self.target.share(logits, position), logits)[0][0]


def record_gradients(
    model: LanguageModel, target: Target, select: Sequence[str], weight: str | None, structure: Structure
) -> GradientPass:
    """Run the model over the target's ids and back from it; record the selected values with their gradients.

    weight: the path of a weight whose gradient is wanted too. The gradients of the model's parameters are not changed.
    """
    ids = list(target.ids)
    stages = [target.name] if target.name in structure.values and structure[target.name].is_derived else []
    trace = Trace(model, [*dict.fromkeys([*select, *stages])], gradients=True, structure=structure)
    decoder, starts, live = model.decoder, LiveValues(), LiveValues()
    leaves = [*decoder.embed.parameters(), *([] if weight is None else [decoder.get_parameter(weight)])]
    with torch.inference_mode(False), torch.enable_grad(), requiring_gradients(leaves), ExitStack() as stack:
        stack.enter_context(decoder.embed.token.register_forward_hook(starts.start))  # before the trace looks at it
        stack.enter_context(trace)
        value = trace.structure.values.get(target.name)
        if not target.is_of_logits and value is not None:
            stack.enter_context(decoder.get_submodule(value.module).register_forward_hook(partial(live.keep, value)))
        hidden = decoder.hidden(torch.tensor([ids], device=model.device))  # (1, T, D)
        if target.is_of_logits or value is None:
            number = sum_of_shares(model, target, hidden[0])
        else:
            number = one_row(value, live.tensors[0])[target.index]
        gradients: Sequence[Tensor | None] = [None] * len(leaves)
        if number.requires_grad:
            _, *gradients = torch.autograd.grad(number, [*starts.tensors, *leaves], allow_unused=True)
    of_weight = {} if weight is None or gradients[-1] is None else {weight: gradients[-1].detach()}
    return GradientPass(model, ids, trace, hidden[0].detach(), target=target, weight_gradients=of_weight)


def sum_of_shares(model: LanguageModel, target: Target, hidden: Tensor) -> Tensor:
    """The target from the hidden states (T, D); the logits of several chunks are computed again in the backward."""

    def share(rows: Tensor, first: int) -> Tensor:
        return target.share(model.decoder.head(rows), first)

    positions, size = target.positions, rows_at_once(model.decoder)
    starts = range(positions.start, positions.stop, size)
    # The first use of `checkpoint` imports torch's compiler, which takes a second
    compute = share if len(starts) == 1 else partial(checkpoint, share, use_reentrant=False)
    shares = [compute(hidden[start : min(start + size, positions.stop)], start) for start in starts]
    return torch.stack(shares).sum()


class LiveValues:
    """Values with their graph, taken by hooks from a running pass."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []

    def start(self, _: nn.Module, __: tuple[Any, ...], output: Tensor) -> Tensor:
        """Start the graph at an output, also if its weights are integers."""
        self.tensors.append(output if output.requires_grad else output.requires_grad_())
        return output

    def keep(self, value: Value, _: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if value.derivation is None:
            self.tensors.append(value.read(inputs, output))
        else:
            self.tensors.append(value.derivation.compute(*(each.read(inputs, output) for each in value.operands)))


@contextmanager
def requiring_gradients(weights: Sequence[Tensor]) -> Generator[None]:
    """Let frozen weights have gradients inside the block."""
    frozen = [weight for weight in weights if not weight.requires_grad]
    for weight in frozen:
        weight.requires_grad_()
    try:
        yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)
