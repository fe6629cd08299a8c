# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What one run of a scenario looked like from outside."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.context import FakeResponseSender
from tests.fakes.journal import Entry, Journal


@dataclass(frozen=True)
class Timed:
    """An output of the handler, when the consumer got it."""

    time: float
    item: Any


@dataclass(frozen=True)
class Logged:
    time: float
    level: int
    name: str
    message: str
    error: BaseException | None


@dataclass
class RequestRecord:
    """One request, seen by its consumer."""

    outputs: list[Timed] = field(default_factory=list)
    error: BaseException | None = None
    ended: float | None = None
    """When the handler was done with it; None: it hung until the horizon."""
    owner_cancelled: bool = False
    """Its owner was cancelled, and the handler ended as cancelled."""
    cancel_swallowed: bool = False
    """The owner's cancellation was delivered to the handler, and the handler went on."""
    polled: int = 0
    """Outputs that came out of the generator itself, not through a response sender."""
    sender: FakeResponseSender | None = None
    """Push egress only."""

    @property
    def items(self) -> list[Any]:
        return [output.item for output in self.outputs]

    @property
    def ids(self) -> list[int]:
        """All token ids that were delivered, in order, whatever the mode."""
        return [token for item in self.items for token in ids_of(item)]

    @property
    def text(self) -> str:
        """Text mode: all that was delivered."""
        return "".join(
            choice["delta"]["content"] for item in self.items for choice in item["choices"]
        )

    @property
    def finish_reasons(self) -> list[str]:
        """Finish reasons that were delivered, in order."""
        return [reason for item in self.items if (reason := finish_of(item))]


def ids_of(item: Any) -> list[int]:
    """Token ids of one output of any mode; text mode has unique texts instead of ids."""
    item = _decoded(item)
    if "choices" in item:
        return [
            int(part.rstrip(">"))
            for choice in item["choices"]
            for part in choice["delta"]["content"].split("<")
            if part
        ]
    native = (item.get("engine_data") or {}).get("sglang_response")
    ids: list[int] = native["output_ids"] if native is not None else item.get("token_ids", ())
    return list(ids)


def finish_of(item: Any) -> str | None:
    """The finish reason in one output of any mode."""
    item = _decoded(item)
    if "choices" in item:
        reason: str | None = item["choices"][0]["finish_reason"]
        return reason
    native = (item.get("engine_data") or {}).get("sglang_response")
    if native is not None:
        finish = native["meta_info"]["finish_reason"]
        return finish and finish["type"]
    return item.get("finish_reason")


def _decoded(item: Any) -> Any:
    """Multimodal workers speak JSON texts."""
    return json.loads(item) if isinstance(item, str) else item


@dataclass
class Observation:
    implementation: str
    journal: Journal
    requests: list[RequestRecord]
    logs: list[Logged]
    registry: list[str]
    """rids that SGLang still holds a state for, at the end."""
    engine_busy: dict[str, str]
    """rids that still cost the scheduler something, at the end."""
    tasks_left: list[str]
    """asyncio tasks of the implementation that are left, at the end."""
    loop_errors: list[str]
    """What reached the loop's exception handler: errors that nobody retrieved."""
    pending_aborts: int
    """Aborts that are still waited for or retried, at the end."""
    not_freed: list[str]
    """States and streams of ended requests that only the garbage collector would free."""
    end: float

    # ---- the first request, which most scenarios have only ----

    @property
    def outputs(self) -> list[Timed]:
        return self.requests[0].outputs

    @property
    def items(self) -> list[Any]:
        return self.requests[0].items

    @property
    def ids(self) -> list[int]:
        return self.requests[0].ids

    @property
    def error(self) -> BaseException | None:
        return self.requests[0].error

    @property
    def ended(self) -> float | None:
        return self.requests[0].ended

    # ---- aborts ----

    @property
    def aborts_called(self) -> list[tuple[float, str | None]]:
        """Calls of ``tokenizer_manager.abort_request``."""
        return [(entry.time, entry.rid) for entry in self.journal.of("abort called")]

    @property
    def aborts_sent(self) -> list[tuple[float, str | None]]:
        """Abort messages that reached the scheduler, effective or not."""
        return [
            (entry.time, entry.rid)
            for entry in self.journal.entries
            if entry.event in ("abort matched", "abort matches nothing")
        ]

    @property
    def effective_aborts(self) -> list[tuple[float, str | None]]:
        """Abort messages that hit a request of the scheduler."""
        return [(entry.time, entry.rid) for entry in self.journal.of("abort matched")]

    # ---- log ----

    def messages(self, level: int = logging.INFO) -> list[str]:
        return [record.message for record in self.logs if record.level >= level]

    def count(self, start: str, level: int = logging.INFO) -> int:
        """How many messages at `level` or above begin with `start`."""
        return sum(message.startswith(start) for message in self.messages(level))

    def logged_at(self, start: str, level: int = logging.DEBUG) -> list[float]:
        """When messages that begin with `start` were logged."""
        return [
            record.time
            for record in self.logs
            if record.level >= level and record.message.startswith(start)
        ]

    # ---- other ----

    def times(self, event: str) -> list[float]:
        return [entry.time for entry in self.journal.of(event)]

    @property
    def submitted_rid(self) -> str:
        """The rid that the worker says it submitted first."""
        start = "Submitted SGLang Request ID: "
        line = next(record.message for record in self.logs if record.message.startswith(start))
        return line.removeprefix(start).partition(",")[0]

    def rid(self, index: int = 0) -> str:
        """The engine's rid of the index-th state that was registered."""
        rid = self.journal.of("registered")[index].rid
        assert rid is not None
        return rid

    @property
    def events(self) -> list[Entry]:
        return self.journal.entries

    def is_clean(self) -> bool:
        """Nothing is left anywhere: engine, registry, tasks, unretrieved errors."""
        return not (
            self.registry
            or self.engine_busy
            or self.tasks_left
            or self.loop_errors
            or self.pending_aborts
        )

    def leftovers(self) -> dict[str, Any]:
        """What `is_clean` found, for a readable assertion."""
        found = {
            "registry": self.registry,
            "engine_busy": self.engine_busy,
            "tasks_left": self.tasks_left,
            "loop_errors": self.loop_errors,
            "pending_aborts": self.pending_aborts,
        }
        return {name: value for name, value in found.items() if value}
