"""End a stream of text at the first stop string."""

from __future__ import annotations

from collections.abc import Sequence

from foretell.errors import UsageError


class StopStrings:
    """Pass text through up to the stop string that begins first, which is left out.

    Text that could be the beginning of a stop string is held back until it is certain. `stopped` says that one was
    found; from then on nothing passes. However the text is cut into `push`es, the result is the same.
    """

    def __init__(self, stops: Sequence[str]):
        """Raises UsageError for an empty stop string, which would end every text before it begins."""
        if isinstance(stops, str) or "" in stops:
            raise UsageError("stop strings must be a list of strings that are not empty")
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that is certain to come before any stop string; '' once stopped."""
        if self.stopped:
            return ""
        self._held += text
        found, open_from = self._first_match(), self._first_open()
        if found is not None and found <= open_from:
            return self._stop_at(found)
        return self._release(open_from)

    def finish(self) -> str:
        """What was held back, now that no more text comes; up to a stop string where one is complete in it."""
        found = None if self.stopped else self._first_match()
        return self._release(len(self._held)) if found is None else self._stop_at(found)

    def _first_match(self) -> int | None:
        places = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        return min(places, default=None)

    def _first_open(self) -> int:
        """Where the first unfinished stop string may begin; the end where none can.

        An unfinished 'abcd' goes before a complete 'c' inside it: the whole text decides which begins first.
        """
        length = len(self._held)
        for start in range(max(0, length - self._longest + 1), length):
            if any(stop.startswith(self._held[start:]) and length - start < len(stop) for stop in self._stops):
                return start
        return length

    def _stop_at(self, place: int) -> str:
        passed = self._held[:place]
        self._held, self.stopped = "", True
        return passed

    def _release(self, place: int) -> str:
        passed, self._held = self._held[:place], self._held[place:]
        return passed
