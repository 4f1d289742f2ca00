"""A model in training with its data and its run directory: what happens at every logged, sampled or saved step."""

from __future__ import annotations

import math
import shlex
from typing import Any

import torch

from foretell.config import Config, SamplingConfig
from foretell.data.loader import Loader, iter_evaluation_batches
from foretell.errors import CheckpointError, Interrupted, TrainingError
from foretell.evaluation.perplexity import Evaluation, bits_per_byte, evaluate
from foretell.generation.engine import generate
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence
from foretell.model.decoder import Decoder
from foretell.pretraining.curve import write_curve
from foretell.pretraining.prepare import TokenizedText
from foretell.pretraining.reporter import Reporter
from foretell.runs.checkpoint import Checkpoint, prune, save_checkpoint
from foretell.runs.run import CURVE, Run
from foretell.training.actions import Action, Progress
from foretell.training.loop import train
from foretell.training.objective import Objective
from foretell.training.optimizer import make_optimizer
from foretell.training.probe import check_mask
from foretell.training.signals import StopSignal

SAMPLE_PROMPT_TOKENS, SAMPLE_TOKENS = 8, 48
SAMPLING = SamplingConfig(temperature=0.8, top_k=50)
START_TOLERANCE = 0.3  # nats: how far from ln V a fresh model may be before it is worth a warning


class Session:
    """Everything between the first and the last step of a run."""

    def __init__(
        self,
        run: Run,
        config: Config,
        text: TokenizedText,
        decoder: Decoder,
        device: torch.device,
        dtype: torch.dtype,
        reporter: Reporter,
    ):
        self.run, self.config, self.text, self.reporter = run, config, text, reporter
        self.device, self.dtype = device, dtype
        self.objective = Objective(decoder.to(device))
        self.optimizer = make_optimizer(decoder, config.training)
        self.loader = Loader(
            text.store.split("train"),
            config.model.context_length,
            config.training.batch_size,
            config.training.seed,
            document_mask=config.data.document_mask,
        )
        self.held_out = text.store.split("validation")
        self.progress = Progress()
        self._validated_step: int | None = None
        self._logged = (0, 0.0)  # tokens and seconds at the last line of metrics

    @property
    def decoder(self) -> Decoder:
        return self.objective.decoder

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint whose weights the decoder already has."""
        state = checkpoint.training()
        if state["tokenizer"] != self.text.tokenizer.fingerprint:
            raise CheckpointError(
                f"{checkpoint.directory} was trained with tokenizer {state['tokenizer']}, and the tokens of this run "
                f"are {self.text.tokenizer.fingerprint}'s; start anew with another --out"
            )
        checkpoint.load_optimizer(self.optimizer, dict(self.decoder.named_parameters()))
        self.progress = Progress(**state["progress"])
        self._logged = (self.progress.tokens, self.progress.seconds)
        self.run.forget_metrics_after(self.progress.step)

    def go(self) -> None:
        """Train to the end, or to the first Ctrl-C or SIGTERM; either way a checkpoint is there afterwards."""
        with StopSignal() as stop:
            self.reporter.ready(self.text.tokenizer, len(self.loader.stream), self.bits_per_byte)
            if self.progress.step == 0:
                self.report_start()
            train(
                self.objective,
                self.optimizer,
                self.loader,
                self.config.training,
                self.progress,
                self.actions(),
                device=self.device,
                dtype=self.dtype,
                should_stop=lambda: stop.number is not None,
            )
            if stop.number is not None and self.progress.step < self.config.training.steps:
                raise self.interrupted(stop.exit_code)
        write_curve(self.run.directory / CURVE, self.run.metrics(), self.run.name)

    def interrupted(self, exit_code: int) -> Interrupted:
        """Save what there is, and say how to go on."""
        saved = "nothing was learned yet"
        if self.progress.step > 0:
            self.save(self.progress)
            saved = "checkpoint saved"
        return Interrupted(
            f"stopped after step {self.progress.step:,}, {saved}; go on with: "
            f"foretell train --out {shlex.quote(str(self.run.directory))} --resume auto",
            exit_code,
        )

    def actions(self) -> list[Action]:
        """What to do beside training, in this order."""
        settings = self.config.training
        return [
            Action(settings.evaluate_every, self.validate_and_log),
            Action(settings.log_every, self.log),
            Action(settings.sample_every, self.sample),
            Action(settings.checkpoint_every, self.save),
        ]

    def check_mask(self) -> None:
        """Refuse to train a model that sees what it may not, tried on rows that it will train on."""
        check_mask(self.decoder, self.loader.batch(self.progress.step).to(self.device), self.dtype)

    def report_start(self) -> None:
        """Check that a model which knows nothing yet finds all tokens equally likely."""
        expected = math.log(self.config.model.vocab_size)
        batches = [self.loader.batch(0).rows(0, 4)]
        found = evaluate(self.objective, batches, self.dtype).loss
        line = f"untrained   loss {found:.2f}, ln({self.config.model.vocab_size:,}) = {expected:.2f}"
        if abs(found - expected) > START_TOLERANCE:
            line += f": warning, a fresh model should be within {START_TOLERANCE} of it; look at model.init"
        self.reporter.note(line)
        self.sample(self.progress)

    def validate(self, progress: Progress) -> None:
        """Bring the validation loss up to this step."""
        if len(self.held_out) > 1 and self._validated_step != progress.step:
            progress.validation_loss = self.evaluate_held_out(self.config.training.evaluation_tokens).loss
            self._validated_step = progress.step

    def validate_and_log(self, progress: Progress) -> None:
        """A validation loss belongs into the metrics, whether or not this step is logged anyway."""
        self.validate(progress)
        self.log(progress)

    def evaluate_held_out(self, max_tokens: int | None = None) -> Evaluation:
        """The loss on the validation text, or on windows evenly spread over it."""
        length, rows = self.config.model.context_length, self.config.training.batch_size
        batches = iter_evaluation_batches(self.held_out, length, rows, max_tokens, self.config.data.document_mask)
        return evaluate(self.objective, batches, self.dtype)

    def bits_per_byte(self, loss: float) -> float:
        """A loss in nats a token of the validation text, as bits for each of its bytes."""
        return bits_per_byte(loss, len(self.held_out), self.held_out.bytes)

    def log(self, progress: Progress) -> None:
        """Append a line to the metrics, and show it; once a step."""
        if self._logged[0] == progress.tokens:
            return
        metrics = self.metrics(progress)
        self._logged = (progress.tokens, progress.seconds)
        self.run.append_metrics(metrics)
        self.reporter.metrics(metrics, self.config.training.steps)

    def metrics(self, progress: Progress) -> dict[str, Any]:
        """The fields of one line of metrics.jsonl; the speed is the mean since the last line."""
        tokens, seconds = self._logged
        elapsed = progress.seconds - seconds
        return {
            "step": progress.step,
            "tokens": progress.tokens,
            "loss": progress.loss,
            "validation_loss": progress.validation_loss if self._validated_step == progress.step else None,
            "learning_rate": progress.learning_rate,
            "gradient_norm": progress.gradient_norm,
            "tokens_per_second": round((progress.tokens - tokens) / elapsed, 1) if elapsed > 0 else None,
            "seconds": round(progress.seconds, 3),
        }

    def sample(self, progress: Progress) -> None:
        """Let the model continue the beginning of the validation text, always with the same draws."""
        tokenizer = self.text.tokenizer
        stream = self.held_out if len(self.held_out) else self.loader.stream
        room = self.config.model.context_length
        prompt = stream.read(0, min(SAMPLE_PROMPT_TOKENS, len(stream), max(1, room // 2))).tolist()
        sequence = Sequence(prompt)
        self.decoder.eval()
        for _ in generate(
            self.decoder,
            [sequence],
            Sampler(SAMPLING, tokenizer.vocab_size),
            min(SAMPLE_TOKENS, room - len(prompt)),
            end_id=tokenizer.end_id,
        ):
            pass
        self.decoder.train()
        before, after = tokenizer.decode(prompt), tokenizer.decode(sequence.generated, skip_special=True)
        self.run.write_sample(progress.step, before + after)
        self.reporter.sample(progress.step, before, after)

    def save(self, progress: Progress) -> None:
        """Write a checkpoint with the validation loss of this very step."""
        self.validate(progress)
        if progress.validation_loss is not None and not math.isfinite(progress.validation_loss):
            raise TrainingError(
                f"step {progress.step}: the validation loss is {progress.validation_loss}; not saved, the checkpoint "
                "before is good. Try a lower --training.learning-rate"
            )
        state = {
            "step": progress.step,
            "tokens": progress.tokens,
            "seed": self.config.training.seed,
            "schedule": self.config.training.schedule,
            "validation_loss": progress.validation_loss,
            "tokenizer": self.text.tokenizer.fingerprint,
            "progress": vars(progress),
        }
        save_checkpoint(self.run.checkpoints, progress.step, self.decoder, self.text.tokenizer, self.optimizer, state)
        prune(self.run.checkpoints, self.config.training.keep_checkpoints)


class ContinuedSession(Session):
    """The first steps of a model that has learned already: what it knows of the new text is said, not judged."""

    def report_start(self) -> None:
        found = evaluate(self.objective, [self.loader.batch(0).rows(0, 4)], self.dtype).loss
        self.reporter.note(f"before      loss {found:.2f} on the new text")
        self.sample(self.progress)
