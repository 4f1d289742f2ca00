"""One step of gradient descent on the shown text, in a copy of the model: from the loss to a weight and a new loss."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from foretell.insight.address import address_of
from foretell.insight.gradient_pass import MEAN_LOSS, GradientPass, Target, make_target, record_gradients, sum_of_shares
from foretell.insight.page.page_pass import PageModel, PagePass
from foretell.insight.recorded_pass import weight_path
from foretell.insight.trace import GRADIENT
from foretell.language_model import LanguageModel
from foretell.model.quantized_linear import quantized_layers

RATES = (0.01, 0.001, 0.0001, 0.00001)  # the learning rate is the first one with which the loss falls, or the last
MOST_WEIGHTS = 400_000_000  # a step needs a copy of the weights, and their gradients
SHOWN = 5  # most probable tokens, before and after the step


def can_learn(page: PageModel) -> bool:
    """True for a decoder whose weights have gradients and fit into memory three times, without a task's head."""
    decoder = page.model.decoder
    size = sum(parameter.numel() for parameter in decoder.parameters())
    return page.readout is None and not page.structure.memory and not quantized_layers(decoder) and size <= MOST_WEIGHTS


@torch.inference_mode(False)
def learning_step(traced: PagePass) -> dict[str, Any] | None:
    """The step as JSON; None for a text of one token. Changes of the pass are not applied.

    `chain` leads from the mean loss of the text to a weight of a value matrix. It follows the token that is predicted
    worst, and the largest gradient of each kind. before, after: the probabilities of `ids` after `position`.
    """
    page, ids = traced.page, traced.ids
    if len(ids) == 1:
        return None
    target = make_target(page.model, page.structure, ids, MEAN_LOSS)
    recording = record_gradients(page.model, target, page.cores["own"], None, page.structure)
    losses = recording.losses
    position = losses.index(max(losses))
    step = Step(page.model, target)
    before, after = (step.probabilities(model, position) for model in (page.model, step.copied))
    likely = [shares.topk(min(SHOWN, len(shares))).indices.tolist() for shares in (after, before)]
    shown = dict.fromkeys([ids[position + 1], *likely[0], *likely[1]])
    return {
        "rate": step.rate,
        "position": position,
        "loss": step.loss,
        "newLoss": step.new_loss,
        "chain": chain(page, recording, step, position),
        "ids": list(shown),
        "before": before[list(shown)].tolist(),
        "after": after[list(shown)].tolist(),
    }


def chain(page: PageModel, recording: GradientPass, step: Step, position: int) -> list[dict[str, Any]]:
    """A logit, an element of a head's output and a weight: {address, value, gradient}; the weight has its new value."""
    token, structure = recording.ids[position + 1], page.structure
    logit = float(recording.pass_logits(position)[token])
    gradients = {core: recording.stored(f"{GRADIENT}{core}")[:, position] for core in page.cores["own"]}  # (H, E)
    core = max(gradients, key=lambda name: float(gradients[name].abs().max()))
    head, element = divmod(int(gradients[core].abs().argmax()), gradients[core].shape[1])
    path = weight_path(page.model.decoder, structure[structure[structure[core].reads[2]].reads[0]])
    group = head // (page.config.num_heads // page.config.num_kv_heads)
    row = group * gradients[core].shape[1] + element
    column = int(step.gradient(path)[row].abs().argmax())
    models = (page.model, step.copied)
    weight, new = (model.decoder.get_parameter(path)[row, column].item() for model in models)
    of_logit, of_weight = float(recording.logit_gradients(position)[token]), float(step.gradient(path)[row, column])
    of_head, output = float(gradients[core][head, element]), float(recording.stored(core)[head, position, element])
    return [
        {"address": address_of("logits", position, token), "value": logit, "gradient": of_logit, "token": token},
        {"address": address_of(core, head, position, element), "value": output, "gradient": of_head, "head": head},
        {"address": address_of(path, row, column), "value": weight, "gradient": of_weight, "new": new},
    ]


class Step:
    """A copy of a model after one step of gradient descent on the target; the model is not changed.

    loss, new_loss: the target before and after it.
    """

    def __init__(self, model: LanguageModel, target: Target):
        self.target, self.copied = target, replace(model, decoder=copy.deepcopy(model.decoder).requires_grad_())
        with torch.enable_grad():
            loss = self._loss()
            loss.backward()
        self.loss = loss.item()
        for self.rate in RATES:
            self._descend(model)
            if self.new_loss < self.loss:
                break

    @torch.no_grad()
    def _descend(self, model: LanguageModel) -> None:
        pairs = zip(self.copied.decoder.parameters(), model.decoder.parameters(), strict=True)
        for weight, start in pairs:
            if weight.grad is not None:
                weight.copy_(start - self.rate * weight.grad)
        self.new_loss = self._loss().item()

    def gradient(self, path: str) -> Tensor:
        """The gradient of a weight before the step."""
        gradient = self.copied.decoder.get_parameter(path).grad
        assert gradient is not None, f"{path} has no gradient"
        return gradient

    @torch.no_grad()
    def probabilities(self, model: LanguageModel, position: int) -> Tensor:
        """The probabilities (V,) of the tokens after a position, by the model or its copy."""
        hidden = model.decoder.hidden(self._ids())[:, position]
        return model.decoder.head(hidden)[0, : self.target.vocabulary].double().softmax(-1)

    def _loss(self) -> Tensor:
        return sum_of_shares(self.copied, self.target, self.copied.decoder.hidden(self._ids())[0])

    def _ids(self) -> Tensor:
        return torch.tensor([self.target.ids], device=self.copied.device)
