"""A model in training with its data and its run directory: what happens at every logged, sampled or saved step."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch

from foretell.config import Config
from foretell.data.loader import iter_evaluation_batches
from foretell.errors import CheckpointError, ConfigError, Interrupted, TrainingError
from foretell.evaluation.perplexity import Evaluation, bits_per_byte, evaluate
from foretell.model.decoder import Decoder
from foretell.pretraining.curve import write_curve
from foretell.pretraining.failures import failures_explained, resume_command
from foretell.pretraining.prepare import TokenizedText, make_loader
from foretell.pretraining.reporter import Reporter
from foretell.pretraining.samples import SEPARATOR, Samples
from foretell.runs.checkpoint import Checkpoint, prune, save_checkpoint
from foretell.runs.run import CURVE, RUN, Run
from foretell.training.actions import Action, Progress
from foretell.training.early_stopping import has_lost_patience, note_evaluation
from foretell.training.loop import train
from foretell.training.meter import Meter
from foretell.training.objective import make_objective
from foretell.training.optimizer import make_optimizer
from foretell.training.probe import check_mask
from foretell.training.signals import StopSignal

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
        self.objective = make_objective(decoder, device, dtype, config.training.label_smoothing)
        self.optimizer = make_optimizer(decoder, config.training, dtype)
        self.loader = make_loader(text, config)
        self.held_out = text.store.split("validation")
        if config.training.patience is not None and len(self.held_out) < 2:
            raise ConfigError(
                "training.patience waits for a better validation loss, and no text is held out; leave it out, or "
                "raise data.validation_fraction"
            )
        stream = self.held_out if len(self.held_out) else self.loader.stream
        prompts = config.training.sample_prompts
        self.samples = Samples(prompts, stream, text.tokenizer, config.model.context_length)
        self.meter = Meter(config.model, device, dtype)
        self.progress = Progress()
        self._validated_step: int | None = None
        self._saved_step: int | None = None
        self._logged = (0, 0.0)  # tokens and seconds at the last line of metrics

    @property
    def decoder(self) -> Decoder:
        return self.objective.decoder

    @cached_property
    def configuration(self) -> str:
        """What names the configuration of this run in its checkpoints."""
        return self.run.configuration_digest()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint whose weights the decoder already has."""
        state = checkpoint.training()
        if state["tokenizer"] != self.text.tokenizer.fingerprint:
            raise CheckpointError(
                f"{checkpoint.directory} was trained with tokenizer {state['tokenizer']}, and the tokens of this run "
                f"are {self.text.tokenizer.fingerprint}'s; start anew with another --out"
            )
        if state.get("configuration", self.configuration) != self.configuration:  # checkpoints of before have none
            raise CheckpointError(
                f"{self.run.directory / RUN} is not the configuration that {checkpoint.directory} was trained with; it "
                "was changed or damaged: put it back, or start anew with another --out"
            )
        checkpoint.load_optimizer(self.optimizer, dict(self.decoder.named_parameters()))
        self.progress = Progress(**state["progress"])
        self._logged = (self.progress.tokens, self.progress.seconds)
        self._saved_step = self.progress.step
        self.run.forget_metrics_after(self.progress.step)

    def go(self) -> None:
        """Train to the end, till patience is lost, or to the first Ctrl-C or SIGTERM; then a checkpoint is there."""
        with StopSignal() as stop, failures_explained(self.run, self.config.training, self.progress):
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
                should_stop=lambda: stop.number is not None or has_lost_patience(self.progress, self.config.training),
            )
            if self.progress.step < self.config.training.steps:
                if not has_lost_patience(self.progress, self.config.training):
                    raise self.interrupted(stop.exit_code)
                self.stop_early()
        write_curve(self.run.directory / CURVE, self.run.metrics(), self.run.name)

    def stop_early(self) -> None:
        """What is done after a last step, and why this was it."""
        best, since = self.progress.best_validation_loss, self.progress.evaluations_since_best
        where = f"step {self.progress.step:,} of {self.config.training.steps:,}"
        self.reporter.note(f"stopped     after {where}: no validation loss below {best:.3f} in {since} evaluations")
        if self._saved_step != self.progress.step:
            self.sample(self.progress)
            self.save(self.progress)

    def interrupted(self, exit_code: int) -> Interrupted:
        """Save what there is, and say how to go on."""
        saved = "nothing was learned yet"
        if self.progress.step > 0:
            self.save(self.progress)
            saved = "checkpoint saved"
        return Interrupted(
            f"stopped after step {self.progress.step:,}, {saved}; go on with: {resume_command(self.run)}",
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
        """A validation loss belongs into the metrics, whether or not this step is logged anyway.

        Who has patience wants to keep the best model that was seen, and not only the best of those saved anyway.
        """
        self.validate(progress)
        is_best = note_evaluation(progress)
        self.log(progress)
        if is_best and self.config.training.patience is not None:
            self.save(progress)

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
        speed = (progress.tokens - tokens) / elapsed if elapsed > 0 else None
        return {
            "step": progress.step,
            "tokens": progress.tokens,
            "loss": progress.loss,
            "validation_loss": progress.validation_loss if self._validated_step == progress.step else None,
            "learning_rate": progress.learning_rate,
            "gradient_norm": progress.gradient_norm,
            "tokens_per_second": None if speed is None else round(speed, 1),
            "seconds": round(progress.seconds, 3),
            "mfu": self.meter.mfu(speed, progress.seconds),
            "peak_memory_bytes": self.meter.peak_memory_bytes(),
        }

    def sample(self, progress: Progress) -> None:
        """Let the model continue the prompts, keep what it writes and show it."""
        written = self.samples.write(self.decoder)
        self.run.write_sample(progress.step, SEPARATOR.join(one.text for one in written))
        for one in written:
            self.reporter.sample(progress.step, one.prompt, one.continuation)

    def save(self, progress: Progress) -> None:
        """Write a checkpoint with the validation loss of this very step, unless there is one."""
        if self._saved_step == progress.step:
            return
        self.validate(progress)
        if progress.validation_loss is not None and not math.isfinite(progress.validation_loss):
            raise TrainingError(
                f"step {progress.step}: the validation loss is {progress.validation_loss}; not saved, the checkpoint "
                "before is good. Try a lower --training.learning-rate"
            )
        self.check_weights(progress)
        self.run.check_present()
        state = {
            "step": progress.step,
            "tokens": progress.tokens,
            "seed": self.config.training.seed,
            "schedule": self.config.training.schedule,
            "validation_loss": progress.validation_loss,
            "tokenizer": self.text.tokenizer.fingerprint,
            "configuration": self.configuration,
            "progress": vars(progress),
        }
        save_checkpoint(self.run.checkpoints, progress.step, self.decoder, self.text.tokenizer, self.optimizer, state)
        prune(self.run.checkpoints, self.config.training.keep_checkpoints, newest=progress.step)
        self._saved_step = progress.step

    def check_weights(self, progress: Progress) -> None:
        """Refuse to save weights that are not finite: after a step too large, before another one noticed."""
        for path, weight in self.decoder.named_parameters():
            if not bool(torch.isfinite(weight).all()):
                raise TrainingError(
                    f"step {progress.step}: '{path}' is not finite; not saved, the checkpoint before is good. "
                    "Try a lower --training.learning-rate"
                )


class ContinuedSession(Session):
    """The first steps of a model that has learned already: what it knows of the new text is said, not judged."""

    def report_start(self) -> None:
        found = evaluate(self.objective, [self.loader.batch(0).rows(0, 4)], self.dtype).loss
        self.reporter.note(f"before      loss {found:.2f} on the new text")
        self.sample(self.progress)
