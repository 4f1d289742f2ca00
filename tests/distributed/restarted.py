"""A training under torchrun whose process of rank 1 is killed before the fifth step, unless it was restarted."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path

from foretell.distributed.world import current_world, disconnect
from foretell.pretraining.pretrain import TextTraining
from foretell.runs.run import Run
from foretell.session.protocol import run_training
from foretell.session.reporter import Reporter

if __name__ == "__main__":
    scenarios = importlib.import_module("scenarios")  # in this folder, which Python searches first
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        scenarios.at_step_4(current_world(), lambda: os.kill(os.getpid(), signal.SIGKILL))
    else:
        print(f"restarted after the checkpoint of step {Run.open(Path(sys.argv[1])).last_intact().step}")
    request = scenarios.request(Path(sys.argv[1]), parallel="fsdp", optimizer="muon")
    run_training(TextTraining(request), Reporter(), resume=True)
    disconnect()
