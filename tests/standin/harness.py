# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""Drives a Generation by hand: a clock that the test moves, and what the requests would get."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from trio_worker.standin.generation import Generation, Limits
from trio_worker.standin.request import Ending, FinishReason, Request, natural_ending
from trio_worker.standin.script import Fault, parse_faults
from trio_worker.standin.tokens import default_alphabet

ALPHABET = default_alphabet(1024)


def request(
    rid: str = "r1",
    prompt: Sequence[int] = (1, 5, 6),
    max_new_tokens: int = 5,
    faults: str = "",
    **fields: Any,
) -> Request:
    ids = array("q", prompt)
    ending = natural_ending(
        prompt_ids=ids, max_new_tokens=max_new_tokens, room=10_000, alphabet=ALPHABET
    )
    return Request(rid=rid, prompt_ids=ids, ending=ending, faults=parse_faults(faults), **fields)


def embedding_request(rid: str = "e1", **fields: Any) -> Request:
    return Request(
        rid=rid,
        prompt_ids=array("q", [1, 2]),
        ending=Ending(0, {"type": "length", "length": 0}),
        is_embedding=True,
        embedding=[1.0, 0.0],
        **fields,
    )


class Bench:
    """A Generation, its outlet, its clock, and everything that was sent, by request."""

    def __init__(self, **limits: Any) -> None:
        self.now = 0.0
        self.notes: list[tuple[str, dict[str, Any]]] = []
        self.echoes: list[tuple[str, FinishReason | None]] = []
        self.strikes: list[Fault] = []
        self.messages: list[dict[str, Any]] = []
        self.embeddings: list[dict[str, Any]] = []
        self.generation = Generation(Limits(**limits), ALPHABET, self)

    # generation.Outlet

    def echo(self, request: Request, reason: FinishReason | None) -> None:
        self.echoes.append((request.rid, reason))

    def admitted(self, request: Request) -> None:
        self.notes.append(("admitted", {"rid": request.rid}))

    def started(self, request: Request) -> None:
        self.notes.append(("started", {"rid": request.rid}))

    def strike(self, fault: Fault) -> None:
        self.strikes.append(fault)

    def note(self, event: str, **fields: Any) -> None:
        self.notes.append((event, fields))

    # driving

    def submit(self, *requests: Request) -> None:
        for one in requests:
            self.generation.submit(one, self.now)

    def abort(self, rid: str = "", **fields: Any) -> Any:
        return self.generation.abort(self.now, rid=rid, **fields)

    def steps(self, count: int) -> None:
        for _ in range(count):
            output = self.generation.step(self.now)
            if output.tokens is not None:
                self.messages.append(output.tokens)
            if output.embeddings is not None:
                self.embeddings.append(output.embeddings)

    def run(self, limit: int = 10_000) -> None:
        """Step until nobody wants a step."""
        for _ in range(limit):
            if not self.generation.steps_wanted:
                return
            self.steps(1)
        raise AssertionError(f"still running after {limit} steps")

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.generation.advance(self.now)

    # what a request got

    def rows(self, rid: str) -> list[dict[str, Any]]:
        """The request's share of every message that it is in, in order."""
        found = []
        for message in self.messages:
            size = len(message["rids"])
            if rid in message["rids"]:
                i = message["rids"].index(rid)
                found.append(
                    {
                        name: column[i]
                        for name, column in message.items()
                        if isinstance(column, list) and len(column) == size
                    }
                )
        return found

    def tokens(self, rid: str) -> list[int]:
        return [token for row in self.rows(rid) for token in row["output_ids"]]

    def finish(self, rid: str) -> FinishReason | None:
        """How it ended; None if it did not. Fails if it got anything after its end."""
        reasons = [row["finished_reasons"] for row in self.rows(rid)]
        assert all(reason is None for reason in reasons[:-1]), reasons
        return reasons[-1] if reasons else None
