"""A training under torchrun's agent, whose process of rank 1 is killed before the fifth step until it is restarted."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path

from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

from foretell.distributed.world import current_world, disconnect
from foretell.generation.batch_generation import continue_prompt
from foretell.pretraining.pretrain import TextTraining
from foretell.runs.run import Run
from foretell.session.protocol import run_training
from foretell.session.reporter import Reporter


def part(out: str) -> None:
    """What each process does."""
    scenarios = importlib.import_module("scenarios")  # in this folder, which Python searches first
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        scenarios.at_step_4(current_world(), lambda: os.kill(os.getpid(), signal.SIGKILL))
    else:
        print(f"restarted after the checkpoint of step {Run.open(Path(out)).last_intact().step}")
    request = scenarios.request(Path(out), parallel="fsdp", optimizer="muon")
    run_training(TextTraining(request, continue_prompt), Reporter(), resume=True)
    disconnect()


if __name__ == "__main__":
    importlib.import_module("scenarios")
    ends = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    config, _, _ = config_from_args(parse_args(["--nproc-per-node=2", "--max-restarts=1", *ends, __file__]))
    config.start_method = "fork"  # a new Python would import torch for seconds, four times
    elastic_launch(config, part)(sys.argv[1])
