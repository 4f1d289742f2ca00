"""glibc's malloc, set for training and for serving."""

from __future__ import annotations

import pytest

from foretell.system.allocator import (
    KEEPING,
    ONE_ARENA,
    RETURNING,
    freed_memory_kept,
    return_free_memory,
    share_one_arena,
)


class Allocator:
    """Records the calls of glibc's functions."""

    def __init__(self) -> None:
        self.options: list[tuple[int, int]] = []
        self.trimmed = 0

    def mallopt(self, option: int, size: int) -> None:
        self.options.append((option, size))

    def malloc_trim(self, size: int) -> None:
        self.trimmed += 1


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    made = Allocator()
    monkeypatch.setattr("foretell.system.allocator.ctypes.CDLL", lambda name: made)
    monkeypatch.setattr("foretell.system.allocator.sys.platform", "linux")
    monkeypatch.setattr("foretell.system.allocator.platform.libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr("foretell.system.allocator.os.environ", {})
    return made


def test_freed_memory_is_kept_in_the_block_and_returned_after_an_error(allocator: Allocator) -> None:
    with pytest.raises(ValueError, match="a failure"), freed_memory_kept():
        assert (allocator.options, allocator.trimmed) == (list(KEEPING.items()), 0)
        raise ValueError("a failure")
    assert (allocator.options[len(KEEPING) :], allocator.trimmed) == (list(RETURNING.items()), 1)


@pytest.mark.parametrize(
    ("name", "value"), [("os.environ", {"MALLOC_ARENA_MAX": "1"}), ("sys.platform", "darwin")], ids=["chosen", "other"]
)
def test_an_allocator_that_the_user_chose_or_another_one_stays_as_it_is(
    allocator: Allocator, monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    monkeypatch.setattr(f"foretell.system.allocator.{name}", value)
    share_one_arena()
    return_free_memory()
    with freed_memory_kept():
        pass
    assert (allocator.options, allocator.trimmed) == ([], 0)


def test_threads_of_a_server_share_one_arena(allocator: Allocator) -> None:
    share_one_arena()
    assert allocator.options == list(ONE_ARENA.items())


def test_free_memory_of_the_heap_is_returned(allocator: Allocator) -> None:
    return_free_memory()
    assert (allocator.options, allocator.trimmed) == ([], 1)
