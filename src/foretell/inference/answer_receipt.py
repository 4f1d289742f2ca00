"""Receipts of whole answers: digests from which anyone with the model can check that it wrote the answer.

A receipt of one token (`insight/receipt.py`) holds its logits. With strict layers another machine computes the same
bits again, so a digest of them is enough: 32 bytes per token, however large the vocabulary is.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field

from foretell.config.sampling import SamplingConfig
from foretell.config.section import Section, make_section
from foretell.device import dtype_name
from foretell.errors import ConfigError, DataError, UsageError
from foretell.generation.logit_digests import merkle_root
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import rules_of
from foretell.inference.continuation import Continuation
from foretell.installation import cpu_features, cpu_info, cpu_model, version_of
from foretell.language_model import LanguageModel
from foretell.model.kernels.fast_decoder import has_numba

FORMAT = "foretell.receipt/3"  # formats 1 and 2 are receipts of one token
LIMITS = (  # variables that limit the instructions of torch, oneDNN, MKL and numba
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR",
    "NUMBA_CPU_NAME",
    "NUMBA_CPU_FEATURES",
)
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Id = Annotated[int, Field(ge=0)]


class ModelIdentity(Section):
    """The digests of everything that decides a model's logits, and its name. tokenizer: its fingerprint."""

    name: str
    weights_sha256: Sha256
    config_sha256: Sha256
    tokenizer: str
    precision: str
    dtype: str


class MachineRecord(Section):
    """Everything on which the last bits of strict logits may depend. limits: the variables of LIMITS that are set."""

    foretell: str | None
    torch: str
    numba: str | None
    device: str
    processor: str
    features: tuple[str, ...]
    instructions: str
    limits: dict[str, str]


class AnsweredRequest(Section):
    """The prompt as ids, and all settings that decide the answer. vocab_size: only ids below it are sampled."""

    prompt: tuple[Id, ...]
    sampling: SamplingConfig
    sample: int
    max_tokens: Id | None
    end_ids: tuple[Id, ...]
    stop: tuple[str, ...]
    slide: bool
    vocab_size: Annotated[int, Field(gt=0)] | None


class SealedRecord(Section):
    """A record whose last field, `sha256`, is the digest of the others, so that damage is detected."""

    def sealed(self) -> Self:
        """The record with this digest."""
        return self.model_copy(update={"sha256": self.expected_sha256()})

    def expected_sha256(self) -> str:
        """The digest of the other fields."""
        return json_digest(self.model_dump(mode="json", exclude={"sha256"}))


class AnswerReceipt(SealedRecord):
    """The receipt of an answer.

    tokens: all sampled ids, including the end token and those that a stop string removed. draws: the random number of
    each, which follows from seed, sample and position. logits: for each, the digest of its logits. root: the root of
    the Merkle tree over these digests. sha256: the digest of all other fields, so that damage is detected.
    """

    format: Literal["foretell.receipt/3"]
    model: ModelIdentity
    machine: MachineRecord
    request: AnsweredRequest
    request_sha256: Sha256
    tokens: tuple[Id, ...]
    finish_reason: Literal["length", "stop", "end", "context"]
    draws: tuple[float, ...]
    logits: tuple[Sha256, ...]
    root: Sha256
    sha256: Sha256

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> AnswerReceipt:
        """Read a receipt. Raises DataError if it is malformed; whether it is true is checked by `verify`."""
        if str(values.get("format")) in ("foretell.receipt/1", "foretell.receipt/2"):
            raise UsageError(
                "this receipt is for one token and has its logits, not digests; for a whole answer: "
                "foretell generate --strict --receipt --json"
            )
        try:
            return make_section(cls, values, where="receipt")
        except ConfigError as error:
            raise DataError(f"rejected: {error}") from None

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


def json_digest(value: Any) -> str:
    """The SHA-256 of JSON with sorted keys and without spaces, in hex."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def identity_of(model: LanguageModel) -> ModelIdentity:
    """The identity of a model; this reads all weights."""
    return ModelIdentity(
        name=model.name,
        weights_sha256=model.weights_digest(),
        config_sha256=json_digest(model.config.model_dump(mode="json")),
        tokenizer=model.tokenizer.fingerprint,
        precision=model.precision,
        dtype=dtype_name(model.dtype),
    )


@cache
def this_machine(device: torch.device) -> MachineRecord:
    """The receipts' record of this machine."""
    info = cpu_info()
    return MachineRecord(
        foretell=version_of("foretell"),
        torch=torch.__version__,
        numba=version_of("numba") if has_numba() else None,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        processor=" ".join([cpu_model(), *(info[name] for name in ("cpu family", "model") if name in info)]),
        features=tuple(cpu_features()),
        instructions=torch.backends.cpu.get_cpu_capability(),
        limits={name: os.environ[name] for name in LIMITS if name in os.environ},
    )


def make_receipt(identity: ModelIdentity, continuation: Continuation, device: torch.device) -> AnswerReceipt:
    """The receipt of a finished continuation that was generated with digests."""
    sequence, rules = continuation.sequence, rules_of(continuation.sequence)
    sampler = rules.sampler
    assert isinstance(sampler, Sampler), "receipts are of sampled tokens"
    request = AnsweredRequest(
        prompt=tuple(sequence.prompt),
        sampling=sampler.config,
        sample=sequence.sample,
        max_tokens=rules.max_tokens,
        end_ids=tuple(sorted(rules.end_ids)),
        stop=continuation.stops.stops,
        slide=rules.slide,
        vocab_size=sampler.vocab_size,
    )
    first = len(sequence.prompt)
    positions = range(first, first + len(sequence.generated))
    values = {
        "format": FORMAT,
        "model": identity,
        "machine": this_machine(device),
        "request": request,
        "request_sha256": json_digest(request.model_dump(mode="json")),
        "tokens": sequence.generated,
        "finish_reason": sequence.finish_reason,
        "draws": [sampler.draw(sequence.sample, position) for position in positions],
        "logits": [digest.hex() for digest in sequence.digests],
        "root": merkle_root(sequence.digests).hex(),
    }
    return make_section(AnswerReceipt, {**values, "sha256": "0" * 64}).sealed()
