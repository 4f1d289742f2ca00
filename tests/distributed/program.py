"""Runs scenarios on several processes: `program.py SIZE RESULT SCENARIO...` writes what they return as JSON.

The processes are forked after torch is imported, so that starting them takes no seconds.
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


def run(rank: int, size: int, port: int, result: Path, names: list[str]) -> int:
    """One process: all scenarios, in order."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
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


def main() -> int:
    size, result, names = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(size):
        if (child := os.fork()) == 0:
            os._exit(run(rank, size, port, result, names))
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main())
