# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""From a seed to a case. Times come from a coarse grid, so that things often happen at once."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from tests.fakes.script import (
    FINISH_LENGTH,
    FINISH_STOP,
    EngineScript,
    Hold,
    Output,
    Retract,
    Step,
    finish_error,
)

from .case import Act, Arm, Case, Consumer, Flavour, Mode, Request, Upload, Verb

T = TypeVar("T")

Theme = Literal[
    "", "failing", "leaving", "broken", "refused", "ending", "waiting", "early", "preempted"
]

THEMES: tuple[Theme, ...] = (
    *("",) * 5,
    *("failing",) * 2,
    *("leaving",) * 2,
    "broken",
    "refused",
    "ending",
    "waiting",
    "early",
    "preempted",
)
"""Rare things meet each other too rarely: some cases are full of them.

broken: streams break while their chunks wait for a consumer. refused: the engine fails while
frames wait for a carrier. ending: a shutdown just when the last chunk comes. waiting: a shutdown
while the last frames wait. early: all goes wrong before or at the dispatch.
preempted: requests lose their KV cache and are queued again, and then everything is aborted.
"""

TOKENS_AT_MOST = 80
"""Per choice; the fake scheduler gives each choice a hundred token ids."""

SEEDS_PER_ENGINE_BUILD = 50
"""Neighbouring seeds share SGLang's arguments, which are costly to publish."""

PREFILL_EVERY = 5
"""One in so many builds is a prefill worker's."""

ENGINE_BUILDS = (0, 1, 3, 8)
"""One of each kind: decode and prefill, with and without SGLang's tokenizer."""

EVENTS = (
    "request",
    "registered",
    "dispatched",
    "running",
    "output",
    "chunk",
    "abort called",
    "abort matched",
    "stream released",
    "landed",
)


def draw(seed: int) -> Case:
    """The case of `seed`; the same everywhere and always."""
    # A string seed goes through SHA-512: neighbouring seeds have nothing in common.
    return _Dice(random.Random(f"trio-worker {seed}")).case(seed)


class _Dice:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._theme: Theme = self._one_of(THEMES)
        self._failing = self._theme == "failing" or self._likely(0.1)
        self._leaving = self._theme == "leaving" or self._likely(0.1)
        self._is_prefill = False

    @property
    def _calm(self) -> bool:
        """Little else happens, so that what the theme is about comes to pass."""
        return self._theme in ("broken", "refused", "ending", "waiting", "preempted")

    # ---- dice ----

    def _one_of(self, options: Sequence[T]) -> T:
        return self._chance.choice(options)

    def _likely(self, probability: float) -> bool:
        return self._chance.random() < probability

    def _gap(self, probability: float, options: Sequence[float]) -> float:
        return self._one_of(options) if self._likely(probability) else 0.0

    # ---- the case ----

    def case(self, seed: int) -> Case:
        build = seed // SEEDS_PER_ENGINE_BUILD
        skip_tokenizer_init = build % 2 == 1
        self._is_prefill = build % PREFILL_EVERY == PREFILL_EVERY - 2
        text = not (skip_tokenizer_init or self._is_prefill) and self._likely(0.4)
        count = self._one_of((1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 8, 12))
        in_place = self._one_of(
            (0, 0, 1) if self._theme in ("refused", "waiting") else (0, 1, 4, 64)
        )
        requests = tuple(self._request(text, in_place) for _ in range(count))
        return Case(
            seed=seed,
            requests=requests,
            acts=tuple(self._acts(requests)),
            role="prefill" if self._is_prefill else "decode",
            crash=self._likely(0.25),
            tap=self._likely(0.85),
            tapped_manager=self._likely(0.8),
            order_is_proven=self._likely(0.85),
            skip_tokenizer_init=skip_tokenizer_init,
            merge_at=self._one_of((1, 2, 4, 64)),
            backlog_frames=self._one_of((0, 2, 32)),
            in_place_frames=in_place,
            batch_callbacks=self._one_of((1, 1, 2) if self._theme == "ending" else (1, 2, 7, 256)),
            pick_up=self._one_of(self._pick_ups()),
        )

    def _pick_ups(self) -> tuple[float, ...]:
        if self._theme == "refused":
            return (0.03, 0.1, 0.2)
        return (0.0, 0.03, 0.1) if self._failing else (0.0, 0.0, 0.001, 0.03)

    def _request(self, text: bool, in_place: int) -> Request:
        mode: Mode = "text" if text else self._one_of(("tokens", "tokens", "native"))
        n = batch = None
        session = False
        if self._is_prefill:
            pass  # one answer to one prompt
        elif mode == "native" and self._likely(0.3):
            if self._likely(0.5):
                batch = self._one_of((1, 2, 3))
            else:
                session = True
        elif self._likely(0.6 if self._theme == "ending" else 0.25):
            n = self._one_of((1, 2, 3))
        arm: Arm = "push" if self._likely(self._pushed()) else "pull"
        return Request(
            script=self._script(ordered=n in (None, 1) and batch is None and not session),
            mode=mode,
            n=n,
            batch=batch,
            session=session,
            arm=arm,
            arrives=self._one_of((0.0, 0.0, 0.0, 0.1, 0.2, 0.5, 1.0, 1.5, 2.0)),
            consumer=self._consumer(arm, in_place),
            planning_seconds=self._gap(0.1, (0.001, 0.05, 0.3)),
            planning_fails=self._likely(0.02),
            upload=self._upload() if self._uploads(mode) else None,
        )

    def _pushed(self) -> float:
        if self._theme in ("refused", "waiting"):
            return 0.9
        if self._theme == "broken":
            return 0.3
        return 0.5 if self._failing else 0.65

    def _uploads(self, mode: Mode) -> bool:
        return mode != "native" and not self._is_prefill and self._likely(0.08)

    def _upload(self) -> Upload:
        return Upload(self._one_of((0.0, 0.01, 0.2, 1.5)), fails=self._likely(0.2))

    def _consumer(self, arm: Arm, in_place: int) -> Consumer:
        if self._theme == "waiting":
            stalls_after = self._one_of((0, 1, 2))
            return Consumer(stalls_after=stalls_after, stalls_until=8.0, depth=max(in_place, 1))
        depth = max(in_place, self._one_of((1, 2, 4, 128)))
        leaves_after = None
        if arm == "pull" and self._likely(0.5 if self._leaving else 0.1):
            leaves_after = self._one_of((1, 1, 2, 3, 5))
        how = self._one_of(("aclose", "drop"))
        kind = self._chance.uniform(*self._paces())
        if kind < 0.55:
            return Consumer(depth=depth, leaves_after=leaves_after, leaves_how=how)
        if kind < 0.7:
            every = self._one_of((0.01, 0.1, 0.3))
            return Consumer(every=every, depth=depth, leaves_after=leaves_after, leaves_how=how)
        return Consumer(
            stalls_after=self._one_of((0, 1, 2, 5, 10)),
            stalls_until=self._one_of((0.5, 1.0, 2.0, 5.0, 8.0)),
            depth=depth,
            leaves_after=leaves_after,
            leaves_how=how,
        )

    def _paces(self) -> tuple[float, float]:
        if self._theme == "refused":
            return 0.0, 0.6
        if self._theme == "broken":
            return 0.5, 1.0
        return (0.4 if self._failing else 0.0), 1.0

    # ---- the engine ----

    def _script(self, *, ordered: bool) -> EngineScript:
        ignores = self._likely(0.35 if self._leaving else 0.05)
        ignored = self._one_of((1, 2, math.inf)) if ignores else 0
        trouble: dict[str, Any] = {}
        late = 0.1 if self._calm else 0.35
        low, high = self._troubles()
        kind = self._chance.uniform(low, high)
        if kind < 0.03:
            trouble["registration_error"] = ValueError("scripted: registration")
        elif kind < 0.06:
            trouble["dispatch_error"] = ValueError("scripted: dispatch")
        elif kind < 0.09:
            trouble["cancel_error"] = RuntimeError("scripted: cancel")
        elif kind < 0.12 and ordered:
            # Otherwise SGLang sends the aborts itself, and does not try again.
            trouble["abort_send_errors"] = 1
        elif kind < 0.3:
            trouble["breakable"] = True
        if self._likely(0.5 if self._leaving else 0.05):
            trouble["resists_cancel_for"] = self._one_of((0.02, 0.3, 2.0, 20.0, 200.0))
        return EngineScript(
            registration_delay=self._gap(0.2, (0.001, 0.05, 0.25, 1.2)),
            tokenize_delay=self._gap(0.9, (0.05, 0.1, 0.3, 0.8))
            if self._theme == "early"
            else self._gap(late, (0.001, 0.01, 0.05, 0.1, 0.3, 1.2)),
            queue_delay=self._gap(late, (0.01, 0.1, 0.3, 1.2)),
            prefill_delay=self._gap(late, (0.01, 0.05, 0.1, 0.5, 1.5)),
            outputs=self._outputs(may_hold=not ignored),
            choice_delays=tuple(
                self._gap(0.4, (0.01, 0.1, 0.5, 1.3)) for _ in range(self._one_of((0, 3)))
            ),
            abort_latency=self._one_of((0.0, 0.0, 0.02, 0.2, 1.5)),
            abort_tokens=self._one_of((0, 1, 1, 3)),
            ignored_aborts=ignored,
            echo_latency=self._one_of((0.0, 0.01, 0.5)),
            **trouble,
        )

    def _troubles(self) -> tuple[float, float]:
        """A range on the scale of `_script`."""
        if self._theme == "broken":
            return 0.12, 0.3
        if self._theme == "early":
            return 0.03, 0.15
        return 0.0, (0.4 if self._failing else 1.0)

    def _outputs(self, *, may_hold: bool) -> tuple[Step, ...]:
        pace = self._one_of(
            (0.05, 0.1, 0.25)
            if self._failing or self._theme in ("broken", "refused")
            else (0.0, 0.01, 0.1, 0.1, 0.25)
        )
        if self._is_prefill:
            waits = [Retract(pace, queued=0.3)] if self._likely(0.1) else []
            return (*waits, self._end(pace, 1))
        left = self._one_of(
            {
                "ending": (1, 1, 2, 3, 5),
                "waiting": (5, 8, 12),
                "broken": (20, 40, TOKENS_AT_MOST),
            }.get(self._theme, (1, 3, 5, 8, 12, 20, 40, TOKENS_AT_MOST))
        )
        retracts = 0.3 if self._theme == "preempted" else self._one_of((0.0, 0.0, 0.05, 0.3))
        steps: list[Step] = []
        while left > 0 and len(steps) < 30:
            if steps and self._likely(retracts):
                steps.append(Retract(pace, queued=self._one_of((0.0, 0.05, 0.3, 1.0))))
                continue
            after = pace if self._likely(0.85) else self._one_of((0.0, 0.05, 1.0))
            tokens = self._one_of((0, 1, 1, 1, 1, 1, 2, 4))
            messages = self._one_of((1, 1, 1, 1, 1, 2, 3, 5, 50))
            if tokens:
                messages = min(messages, max(1, left // tokens))
                tokens = min(tokens, left)
            left -= tokens * messages
            steps.append(Output(after, tokens, messages=messages))
        if may_hold and self._likely(0.5 if self._theme == "broken" else 0.15):
            return (*steps, Hold())
        if self._likely(0.3):
            return (*steps, self._end(pace, 0))
        last = steps.pop()
        if not isinstance(last, Output):
            return (*steps, last, self._end(pace, 1))
        return (*steps, replace(last, finish=self._end(pace, 1).finish))

    def _end(self, after: float, tokens: int) -> Output:
        good = 0 if self._theme == "refused" else 1 if self._failing else 6
        finish = self._one_of(
            (
                *(FINISH_LENGTH, FINISH_STOP) * good,
                finish_error(400, "BadRequestError", "scripted: refused"),
                finish_error(500, "InternalServerError", "scripted: failed"),
                finish_error(503, None, "scripted: unavailable"),
                finish_error(None, "SomeError", "scripted: no status"),
            )
        )
        return Output(after, tokens, finish)

    # ---- the others ----

    def _acts(self, requests: tuple[Request, ...]) -> list[Act]:
        acts = []
        verbs: tuple[Verb, ...] = (
            *("stop",) * 8,
            *("kill",) * 2,
            *("lose",) * 4,
            *("cancel owner",) * (12 if self._leaving or self._theme == "early" else 4),
            *("pause engine",) * 2,
            *("break streams",) * (12 if self._failing else 2),
            *("abort all",) * 2,
        )
        for _ in range(self._chance.randint(0, 1 if self._calm else len(requests) + 2)):
            acts.append(self._act(self._one_of(verbs), requests))
        if self._theme == "broken":
            acts.append(self._act("break streams", requests))
        elif self._theme == "preempted":
            acts.append(self._act("abort all", requests))
        if self._likely(self._shutdowns()):
            acts.append(self._act("shutdown", requests))
        return acts

    def _shutdowns(self) -> float:
        if self._theme in ("broken", "refused", "preempted"):
            return 0.1
        return 0.95 if self._theme in ("ending", "waiting", "early") else 0.5

    def _act(self, verb: Verb, requests: tuple[Request, ...]) -> Act:
        index = self._chance.randrange(len(requests))
        at = on = None
        if verb == "shutdown" and self._theme == "ending":
            on = (self._one_of(("output", "chunk")), self._one_of((1, 1, 2, 2, 3, 4, 6)))
        elif verb == "shutdown" and self._theme == "early":
            at = requests[index].arrives + self._one_of((0.02, 0.05, 0.2))
        elif verb == "shutdown" and self._theme == "waiting":
            at = requests[index].arrives + 0.25 * self._chance.randint(2, 12)
        elif verb == "break streams" and self._theme == "broken":
            on = ("output", self._one_of((2, 3, 5, 8, 13)))
        elif verb == "abort all" and self._theme == "preempted":
            at = requests[index].arrives + 0.05 * self._chance.randint(4, 40)
        elif verb == "shutdown" or self._likely(0.45):
            # On the grid of the request's own times, and sometimes beside it.
            at = round(requests[index].arrives + 0.05 * self._chance.randint(0, 40), 3)
            at += self._one_of((0.0, 0.0, 0.0, 0.001, 0.02))
        themed = self._theme in ("early", "waiting")
        often = 0.0 if themed else 0.5
        if on is None and (at is None or (verb == "shutdown" and self._likely(often))):
            on = (self._one_of(EVENTS), self._one_of((1, 1, 1, 2, 3, 5)))
        flavours: tuple[Flavour, ...] = ("direct", "asyncio", "trio")
        if verb == "shutdown":
            flavours = ("trio",)  # its plan is a Trio task
        elif verb == "abort all":
            flavours = ("asyncio", "trio")  # a scheduler takes no message while it does something
        return Act(
            verb,
            index,
            at=at,
            on=on,
            flavour=self._one_of(flavours),
            hops=self._one_of((0, 0, 0, 1, 2, 3, 6)),
            seconds=self._one_of((0.0, 0.05, 0.3, 1.5)),
        )
