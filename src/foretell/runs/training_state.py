"""Save and load the state of a training: the model, the optimizer's state, training.json.

A single process writes `optimizer.safetensors`. With sharded weights, each of N processes writes its part as
`optimizer-00001-of-00003.safetensors`, whose header gives the place of each part. torch's planner
decides which process reads which part, so that any number of processes can load a checkpoint of any other number.
torch's own storage keeps the places in a pickle, `.metadata`; here the headers replace it.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from foretell.distributed.world import ALONE, World
from foretell.errors import CheckpointError
from foretell.runs.checkpoint import OPTIMIZER, TRAINING, Checkpoint, optimizer_files
from foretell.storage.files import new_directory, write_json
from foretell.storage.manifest import write_manifest
from foretell.storage.safetensors_files import open_tensors, save_tensors


@dataclass(frozen=True)
class CheckpointParts:
    """The contents of a checkpoint.

    `write_model` writes the files of the model into a directory; `model` names the weights in the optimizer's file;
    `training` is the content of training.json.
    """

    write_model: Callable[[Path], None]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    training: dict[str, Any]


def save_checkpoint(folder: Path, step: int, parts: CheckpointParts, world: World = ALONE) -> Checkpoint:
    """Write `folder/step-000123` completely or not at all, replacing an older one of the same step.

    All processes must call it; they return when it is written.
    """
    final = folder / f"step-{step:06d}"
    if world.is_first:
        with new_directory(final) as temporary:
            world.decide(lambda: str(temporary))
            write_parts(temporary, parts, world)
            write_json(temporary / TRAINING, parts.training)
            write_manifest(temporary)
            if final.exists():
                Checkpoint(final).carry_others(temporary)
    else:
        write_parts(Path(world.decide(str)), parts, world)
    return Checkpoint(Path(world.decide(lambda: str(final))))


def write_parts(directory: Path, parts: CheckpointParts, world: World) -> None:
    """Write the model and the optimizer's state: the first process writes whole tensors, every process its shards."""
    parts.write_model(directory)
    tensors = optimizer_tensors(parts.model, parts.optimizer)
    if any(isinstance(tensor, DTensor) for tensor in tensors.values()):
        path = directory / f"optimizer-{world.rank + 1:05}-of-{world.size:05}.safetensors"
        with by_itself():
            dcp.save(tensors, storage_writer=SafetensorsWriter(path), no_dist=True)
    elif world.is_first:
        save_tensors(directory / OPTIMIZER, {key: value.cpu().contiguous() for key, value in tensors.items()})
    world.wait()  # until all shards are there


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state of the trained weights as `<weight path>.<moment>` -> tensor."""
    return {
        f"{path}.{moment}": value.detach()
        for path, weight in model.named_parameters()
        if weight.requires_grad
        for moment, value in optimizer.state[weight].items()
    }


def load_optimizer(checkpoint: Checkpoint, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Restore the optimizer's state for the trained weights of `model` from a checkpoint.

    With sharded weights, each process reads its part; the number of processes may have changed.
    """
    reader = SafetensorsReader(checkpoint.directory)
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    names = optimizer_files(each.name for each in checkpoint.directory.iterdir())
    path, known = checkpoint.directory / names[0], {key.rpartition(".")[0] for key in reader.tensors}
    if missing := sorted(set(trained) - known):
        raise CheckpointError(f"{path} has nothing for '{missing[0]}'")
    if unknown := sorted(known - set(trained)):
        raise CheckpointError(f"{path} has moments for '{unknown[0]}', which this run does not train")
    tensors = {key: empty_moment(key, entry.size, trained) for key, entry in reader.tensors.items()}
    with by_itself():
        dcp.load(tensors, storage_reader=reader, no_dist=True)
    for key, tensor in tensors.items():
        name, _, moment = key.rpartition(".")
        optimizer.state[trained[name]][moment] = tensor.to(trained[name].device)


def empty_moment(key: str, size: torch.Size, trained: Mapping[str, Tensor]) -> Tensor:
    """An empty tensor for a moment, sharded like its weight; or for a number."""
    weight = trained[key.rpartition(".")[0]]
    if size and size != weight.shape:
        raise CheckpointError(f"the checkpoint's '{key}' is {tuple(size)}, but the weight is {tuple(weight.shape)}")
    return torch.empty_like(weight, requires_grad=False) if size and isinstance(weight, DTensor) else torch.empty(size)


# --- torch's distributed checkpoints (DCP) without their pickle -------------------------------------
CHUNKS = "chunks"  # header entry: key -> {"offsets", "size"}, the place of a part and the shape of the whole tensor
Places = dict[tuple[str, tuple[int, ...]], Path]  # (key, offsets) -> the file that has this part


@contextmanager
def by_itself() -> Iterator[None]:
    """Save or load without exchange between processes: each has its plan, and torch would exchange pickles."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        try:
            yield
        except CheckpointException as error:  # torch wraps the original error
            raise next(iter(error.failures.values()))[0] from error


class PlansOfOne:
    """The methods of torch's storage interface for several processes, which exchange nothing here."""

    def reset(self, checkpoint_id: Any = None) -> None:
        """One object handles one checkpoint."""

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True


class SafetensorsWriter(PlansOfOne, StorageWriter):
    """Writes the parts of one process into one file."""

    def __init__(self, path: Path):
        self.path = path

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the parts, with their places in the whole tensors in the header."""
        parts: dict[str, Tensor] = {}
        chunks: dict[str, Any] = {}
        for item in plan.items:
            assert item.tensor_data is not None, "the state of an optimizer has tensors only"
            key, chunk = item.index.fqn, item.tensor_data.chunk
            if 0 in chunk.sizes:  # fewer rows than processes
                continue
            value = planner.resolve_data(item)
            assert isinstance(value, Tensor) and key not in parts, "each process holds one part of a tensor"
            parts[key] = value.detach().cpu().contiguous()
            chunks[key] = {"offsets": list(chunk.offsets), "size": list(item.tensor_data.size)}
        save_tensors(self.path, parts, {CHUNKS: json.dumps(chunks, sort_keys=True)})
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, 0, None) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Nothing to write: the headers are complete."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to prepare."""


class SafetensorsReader(PlansOfOne, StorageReader):
    """Reads the files that one or more processes have written."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.tensors, self.places = read_places(directory)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The parts of each tensor that are present."""
        return Metadata(dict(self.tensors))

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy the parts that the plan requests."""
        for item in plan.items:
            index = item.storage_index
            assert index.offset is not None
            with open_tensors(self.places[index.fqn, tuple(index.offset)]) as file:
                stored = file.get_slice(index.fqn) if item.lengths else file.get_tensor(index.fqn)
                ranges = zip(item.storage_offsets, item.lengths, strict=True)
                value = stored[tuple(slice(start, start + length) for start, length in ranges)]
                target = planner.resolve_tensor(item).detach()
                target.copy_(value)
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to prepare."""


def read_places(directory: Path) -> tuple[dict[str, TensorStorageMetadata], Places]:
    """The tensors of a checkpoint with their parts, from the headers of its files; damage is a `CheckpointError`."""
    tensors: dict[str, TensorStorageMetadata] = {}
    places: Places = {}
    for name in optimizer_files(path.name for path in directory.iterdir()):
        path = directory / name
        with open_tensors(path) as file:
            chunks = read_chunks(path, file.metadata())
            for key in file.keys():  # noqa: SIM118
                part = file.get_slice(key)
                shape = tuple(part.get_shape())
                offsets, size = chunks.get(key, ((0,) * len(shape), shape))
                is_within = len(offsets) == len(shape) == len(size) and part.get_dtype() == "F32"
                if not is_within or any(o + s > n for o, s, n in zip(offsets, shape, size, strict=True)):
                    raise CheckpointError(f"{path} is damaged: its part of '{key}' does not fit the whole")
                stored = tensors.setdefault(key, TensorStorageMetadata(TensorProperties(), torch.Size(size), []))
                if (key, offsets) not in places:  # every process writes the values that are not sharded
                    stored.chunks.append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(shape)))
                    places[key, offsets] = path
    return tensors, places


def read_chunks(path: Path, header: dict[str, str] | None) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Key -> (offsets, size of the whole) of the parts in a file; empty for a file of whole tensors."""
    if header is None or CHUNKS not in header:
        return {}
    try:
        entries = json.loads(header[CHUNKS])
        return {key: (whole_numbers(entry["offsets"]), whole_numbers(entry["size"])) for key, entry in entries.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise CheckpointError(f"{path} is damaged: its header does not name the parts it has") from None


def whole_numbers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or any(type(value) is not int or value < 0 for value in values):
        raise ValueError("not a list of whole numbers")
    return tuple(values)
