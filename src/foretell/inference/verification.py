"""The check of an answer's receipt: the same scheduler and sampler compute the answer again."""

from __future__ import annotations

import secrets
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from foretell.config.sampling import SamplingConfig
from foretell.errors import CheckpointError, ContextLengthError, UsageError, check_count, counted
from foretell.generation.batch_generation import make_scheduler, run
from foretell.generation.filters import Prefix, Prefixes
from foretell.generation.logit_digests import logits_digest, merkle_root
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Rules, Sequence
from foretell.generation.speculation import Proposer
from foretell.inference.answer_receipt import AnswerReceipt, identity_of, json_digest, this_machine
from foretell.inference.continuation import Continuation
from foretell.language_model import LanguageModel
from foretell.text import StopStrings
from foretell.typesetting.document import DocumentSection, Paragraph, Table, quoted
from foretell.typesetting.html import Shown

# Logits of two machines may differ by this. Measured with and without numba: 8e-6 in float32, 0.06 in bfloat16
TOLERANCES = {"float32": 1e-3, "float64": 1e-3}
TOLERANCE = 0.25  # in formats shorter than float32
TRIES = 64  # logits with random differences of that size
Verdict = Literal["verified", "consistent", "rejected"]


@dataclass(frozen=True)
class Verification(Shown):
    """The result of a check.

    findings: one line for each field or position that differs from the model's result. num_equal: number of positions
    whose logits have the receipt's bits; num_near: number whose logits differ but lead to the same token. differences:
    differences between this machine and the receipt's.
    """

    receipt: AnswerReceipt
    text: str
    num_checked: int
    num_equal: int
    num_near: int
    differences: list[str]
    findings: list[str]

    @property
    def verdict(self) -> Verdict:
        """verified: all bits are equal. consistent: bits differ as between machines, but lead to the same tokens."""
        if self.findings:
            return "rejected"
        return "consistent" if self.num_near else "verified"

    def document(self) -> DocumentSection:
        receipt, bits = self.receipt, f"{self.num_equal} with equal bits"
        if self.num_near:
            bits += f", {self.num_near} with other bits that lead to the same token"
        machine = receipt.machine
        rows = [
            ("prompt", counted(len(receipt.request.prompt), "token")),
            ("answer", f"{counted(len(receipt.tokens), 'token')}, ended by {receipt.finish_reason}"),
            ("model", f"{receipt.model.name}, {receipt.model.precision}, weights {receipt.model.weights_sha256[:16]}"),
            ("machine", f"{machine.processor}, {machine.instructions}, torch {machine.torch}, numba {machine.numba}"),
            ("here", f"other {', '.join(self.differences)}" if self.differences else "the same"),
            ("checked", f"{self.num_checked} of {counted(len(receipt.tokens), 'token')}: {bits}"),
        ]
        lines = [repr(self.text), *self.findings, VERDICTS[self.verdict]]
        return DocumentSection("", [Table(("", ""), rows), *map(Paragraph, lines)])

    def to_json(self) -> dict[str, Any]:
        names = ("verdict", "text", "num_checked", "num_equal", "num_near", "differences", "findings")
        return {name: getattr(self, name) for name in names}


VERDICTS: dict[Verdict, str] = {
    "verified": "verified: this model writes this answer, with the same bits",
    "consistent": "tokens consistent; bits are not comparable with this machine",
    "rejected": "rejected",
}


def verify(model: LanguageModel, receipt: AnswerReceipt, positions: int | None = None) -> Verification:
    """Compute an answer again with a strict model, and compare it with its receipt.

    positions: check this many tokens, the last one and others chosen at random; None: all tokens. The logits of a
    token depend on all tokens before it, so the last one also reveals a change of tokens that are not checked.
    Raises UsageError for a model that is not strict.
    """
    if not model.is_strict:
        raise UsageError("receipts are checked with strict layers; use model.strict()")
    if positions is not None:
        check_count("positions", positions)
    if receipt.model.tokenizer == (on_ids := model.on_ids()).tokenizer.fingerprint:
        model = on_ids
    machine = this_machine(model.device)
    differences = [name for name, value in machine if value != getattr(receipt.machine, name)]
    replay = Replay(model, receipt, chosen(len(receipt.tokens), positions), are_bits_comparable=not differences)
    findings = [*changes(receipt), *(obstacles := other_model(receipt, model) or impossible(receipt, model))]
    if not obstacles:
        findings += replay.run()
    known = [token for token in receipt.tokens if model.tokenizer.has(token)]
    checked = replay.equal | replay.near | replay.other | replay.findings_at.keys()
    numbers = len(checked), len(replay.equal), len(replay.near)
    return Verification(receipt, model.decode(known), *numbers, differences, findings)


def chosen(count: int, positions: int | None) -> set[int]:
    """The indices of the tokens to check."""
    if positions is None or positions >= count:
        return set(range(count))
    return {count - 1, *secrets.SystemRandom().sample(range(count - 1), positions - 1)}


def changes(receipt: AnswerReceipt) -> list[str]:
    """Findings about digests and draws that contradict the rest of the receipt."""
    request, findings = receipt.request, []
    if receipt.sha256 != receipt.expected_sha256():
        findings.append("sha256: the receipt was changed after it was written")
    if receipt.request_sha256 != json_digest(request.model_dump(mode="json")):
        findings.append("request_sha256: the digest belongs to another request")
    if receipt.root != merkle_root([bytes.fromhex(digest) for digest in receipt.logits]).hex():
        findings.append("root: it is not the root over the digests of the logits")
    sampler = Sampler(SamplingConfig(seed=request.sampling.seed))
    for index, draw in enumerate(receipt.draws):
        expected = sampler.draw(request.sample, len(request.prompt) + index)
        if draw != expected:
            findings.append(f"token {index}: the draw is {draw!r}, but this seed and position give {expected!r}")
    return findings


def other_model(receipt: AnswerReceipt, model: LanguageModel) -> list[str]:
    """Findings about parts of the model that differ from the receipt's."""
    expected, given = receipt.model, identity_of(model)
    if expected.dtype != given.dtype or expected.precision != given.precision:
        return [f"the receipt is for a model in {expected.precision}, but {model.name} is in {given.precision}"]
    pairs = {
        "other weights": (expected.weights_sha256, given.weights_sha256),
        "another configuration": (expected.config_sha256, given.config_sha256),
        "another tokenizer": (expected.tokenizer, given.tokenizer),
    }
    return [
        f"{model.name} has {part}: sha256 {actual[:16]}, but the receipt's is {wanted[:16]}"
        for part, (wanted, actual) in pairs.items()
        if wanted != actual
    ]


def impossible(receipt: AnswerReceipt, model: LanguageModel) -> list[str]:
    """The reasons why the answer cannot be computed."""
    request, size = receipt.request, model.config.vocab_size
    findings = []
    if not len(receipt.tokens) == len(receipt.logits) == len(receipt.draws):
        numbers = f"{len(receipt.tokens)} tokens, {len(receipt.logits)} digests and {len(receipt.draws)} draws"
        findings.append(f"the receipt has {numbers}")
    if not receipt.tokens and request.max_tokens != 0:
        findings.append("the receipt has no tokens")
    if wrong := [token for token in (*request.prompt, *receipt.tokens) if token >= size]:
        findings.append(f"token {wrong[0]} is outside the model's vocabulary (0 to {size - 1})")
    return findings


class Replay(Proposer):
    """Computes an answer again: chooses the receipt's tokens, and proposes them so that one pass reads many."""

    num_tokens = 256  # tokens of the answer in one pass

    def __init__(self, model: LanguageModel, receipt: AnswerReceipt, positions: set[int], are_bits_comparable: bool):
        self.model, self.receipt, self.positions = model, receipt, positions
        self.are_bits_comparable = are_bits_comparable
        self.equal: set[int] = set()
        self.near: set[int] = set()
        self.other: set[int] = set()
        self.findings_at: dict[int, str] = {}  # index of a token -> finding

    def run(self) -> list[str]:
        """Read the prompt and the answer; returns the findings."""
        request, tokens = self.receipt.request, self.receipt.tokens
        tokenizer = self.model.tokenizer
        try:
            self.sampler = Sampler(request.sampling, request.vocab_size, tokenizer.token_bytes)
            rules = Rules(self, request.max_tokens, frozenset(request.end_ids), request.slide)
            sequence = Sequence(list(request.prompt), request.sample, rules=rules)
            continuation = Continuation(tokenizer, sequence, StopStrings(request.stop))
            for _ in run(make_scheduler(self.model.decoder, [sequence], self), [sequence]):
                continuation.new_text()
                if len(sequence.generated) == len(tokens):
                    break
        except (UsageError, ContextLengthError, CheckpointError) as error:
            return [*self._found(), f"the answer cannot be computed: {error}"]
        return [*self._found(), *self._wrong_end(sequence)]

    def _found(self) -> list[str]:
        """Findings about tokens and their logits."""
        if not self.other:
            return list(self.findings_at.values())
        which = f"the logits of {len(self.other)} tokens have other digests, first of token {min(self.other)}"
        return [*self.findings_at.values(), which]

    def _wrong_end(self, sequence: Sequence) -> list[str]:
        """The finding if the request's rules end the answer at another token."""
        count, reason = len(sequence.generated), sequence.finish_reason
        if count == len(self.receipt.tokens) and reason == self.receipt.finish_reason:
            return []
        ended = "does not end" if reason in (None, "cancelled") else f"ends by {reason}"
        of = f"the receipt ends after {len(self.receipt.tokens)} tokens by {self.receipt.finish_reason}"
        return [f"{of}, and by its rules the answer {ended} after {count}"]

    # ------------------------------------------------------------------ as a chooser of tokens

    @property
    def vocab_size(self) -> int | None:
        return self.sampler.vocab_size

    @property
    def group(self) -> Hashable:
        return self

    def __call__(self, logits: Tensor, prefixes: Prefixes, samples: list[int]) -> list[int]:
        """The receipt's tokens, even if the sampler chooses others, so that later tokens are checked too."""
        indices = [len(prefix.generated) for prefix in prefixes]
        for index, row, prefix in zip(indices, logits, prefixes, strict=True):
            if index in self.positions:
                self._check(index, row, prefix)
        return [self.receipt.tokens[index] for index in indices]

    def completes(self, generated: list[int]) -> bool:
        return self.sampler.completes(generated)

    def _check(self, index: int, logits: Tensor, prefix: Prefix) -> None:
        """Compare one token, and the logits (V,) before it, with the receipt."""
        token, expected = self._sampled(logits[None], prefix)[0], self.receipt.tokens[index]
        has_equal_bits = logits_digest(logits).hex() == self.receipt.logits[index]
        if not has_equal_bits and self.are_bits_comparable:
            self.other.add(index)
        elif token == expected or (not has_equal_bits and expected in self._nearby(logits, prefix, expected)):
            (self.equal if has_equal_bits else self.near).add(index)
        else:
            named, computed = (f"{each} {quoted(self.model.tokenizer.text_of(each))}" for each in (expected, token))
            self.findings_at[index] = f"token {index}: the receipt has {named}, and the logits lead to {computed}"

    def _sampled(self, logits: Tensor, prefix: Prefix) -> list[int]:
        """The token of each row of logits (B, V) after a prefix."""
        return self.sampler(logits, [prefix] * len(logits), [self.receipt.request.sample] * len(logits))

    def _nearby(self, logits: Tensor, prefix: Prefix, token: int) -> list[int]:
        """Tokens sampled from logits (V,) with errors as between two machines; half of the errors favour `token`."""
        tolerance = TOLERANCES.get(self.receipt.model.dtype, TOLERANCE)
        rng = torch.Generator().manual_seed(0)
        noise = tolerance * (2 * torch.rand(TRIES, len(logits), generator=rng, dtype=torch.float64) - 1)
        noise[::2, token] = tolerance
        return self._sampled(logits.cpu().double() + noise, prefix)

    # ------------------------------------------------------------------ as a proposer

    def guess(self, sequence: Sequence, room: int) -> list[int]:
        """The next tokens of the receipt, except the last, which is sampled."""
        count = len(sequence.generated)
        return list(self.receipt.tokens[count : min(count + room, len(self.receipt.tokens) - 1)])
