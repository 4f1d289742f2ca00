"""The configuration in frozen sections. TOML comes in, JSON goes out; nothing here imports torch.

Each section checks itself when it is made: unknown keys, contradictions between fields and values out of range are a
`ConfigError` of one line. Names that nanoGPT and Hugging Face use for the same field are accepted in input (`ALIASES`).

training_run.py   Config: the sections of one training run; read_toml
model.py          ModelConfig: the shape of a decoder
data.py           TokenizerConfig, DataConfig: how text becomes tokens, and tokens become rows
training.py       TrainingConfig: steps, optimizer, evaluation
sampling.py       SamplingConfig: how the next token is chosen
section.py        Section, the base class of them all; make_section
field_names.py    ALIASES: other projects' names for a field
nanogpt.py        training settings in nanoGPT's words, translated or refused
messages.py       errors as one line, with the nearest key that exists

The letters for sizes, used in every comment of the package:
    B rows, T query positions, S key positions, D width, H query heads, G key/value heads, E head width,
    F feed-forward width, V vocabulary, L layers
"""

from foretell.config.data import DataConfig, TokenizerConfig
from foretell.config.field_names import ALIASES
from foretell.config.messages import check_known
from foretell.config.model import Bias, DropoutRates, ModelConfig, RopeScaling, Size
from foretell.config.nanogpt import translate_training_input
from foretell.config.sampling import SamplingConfig
from foretell.config.section import Section, make_section
from foretell.config.training import TrainingConfig
from foretell.config.training_run import Config, read_toml

__all__ = [
    "ALIASES",
    "Bias",
    "Config",
    "DataConfig",
    "DropoutRates",
    "ModelConfig",
    "RopeScaling",
    "SamplingConfig",
    "Section",
    "Size",
    "TokenizerConfig",
    "TrainingConfig",
    "check_known",
    "make_section",
    "read_toml",
    "translate_training_input",
]
