"""How a translation model is trained by default."""

from __future__ import annotations

from typing import Any

from foretell.translation.config import EncoderDecoderConfig

# By width: the rate of the nearest. Muon's at 256 is that of docs/translation.md; the others were not compared
RATES = {"muon": {64: 6e-3, 128: 5e-3, 256: 4e-3, 512: 2e-3}, "adamw": {64: 3e-3, 128: 2e-3, 256: 1e-3, 512: 7e-4}}
LABEL_SMOOTHING = 0.1  # Vaswani et al. 2017, section 5.4


def training_defaults(model: EncoderDecoderConfig, steps: int) -> dict[str, Any]:
    """The settings for a new model: AdamW where the norm comes after the residual, else Muon."""
    optimizer = "adamw" if model.norm_placement == "post" else "muon"
    rates = RATES[optimizer]
    return {
        "steps": steps,
        "optimizer": optimizer,
        "learning_rate": rates[min(rates, key=lambda width: abs(width - model.width))],
        "schedule": "linear",
        "final_learning_rate_share": 0.0,
        "warmup_steps": min(200, max(1, steps // 10)),
        "weight_decay": 0.1 if optimizer == "muon" else 0.01,
        "beta2": 0.98,
        "label_smoothing": LABEL_SMOOTHING,
        "log_every": max(1, min(10, steps // 100)),
        "evaluate_every": min(250, -(-steps // 10)),
        "sample_every": -(-steps // 5),
        "checkpoint_every": min(500, -(-steps // 5)),
    }


def dropout_for(epochs: float) -> dict[str, float]:
    """Dropout rates for pairs that are read so many times; attention weights are never dropped, as in text training."""
    rate = 0.0 if epochs < 3 else 0.1
    return {"embedding": rate, "attention": 0.0, "residual": rate}
