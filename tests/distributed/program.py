"""Runs scenarios on several processes: `program.py SIZE RESULT GROUP...` writes what they return as JSON.

A group is names of scenarios with commas between them, which the same processes run. Where there are several groups,
the messages of each are in a file next to RESULT, which has their exit codes. The program runs in a copy of a process
that has imported torch (tests/warm.py), and forks after the scenarios are imported: starting takes no seconds.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import traceback
from pathlib import Path

from foretell.distributed.world import current_world, disconnect
from foretell.session import session


def run(rank: int, size: int, port: int, result: Path, names: list[str]) -> int:
    """One process: all scenarios of a group, in order."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    session.draw_curve = lambda run: None  # takes longer than these trainings
    try:
        world = current_world()
        scenarios = importlib.import_module("scenarios")  # in this folder, which Python searches first
        values = {name: getattr(scenarios, name)(world) for name in names}
        if world.is_first:
            result.write_text(json.dumps(values))
        disconnect()
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run_group(size: int, result: Path, names: list[str], messages: Path | None = None) -> int:
    """The largest exit code of the processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(size):
        if (child := os.fork()) == 0:
            if messages is not None:
                os.dup2(os.open(messages, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
            os._exit(run(rank, size, port, result, names))
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def main() -> int:
    size, result, groups = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    importlib.import_module("scenarios")
    if len(groups) == 1:
        return run_group(size, result, groups[0].split(","))
    codes = {
        group: run_group(size, result, group.split(","), result.with_name(f"{group}.messages")) for group in groups
    }
    result.write_text(json.dumps(codes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
