# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""One client that stops reading for 30 s beside 64 that read, and the same without it.

It has a tiny receive buffer and asks for logprobs, so its frames pile up soon. Then it reads on,
and its answer must be whole; another one leaves while it is stuck, and its request must end.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from typing import Any

import trio

from tests.bench.serving import Load, Variant, resident_mb
from trio_worker.inside import ROUTE
from trio_worker.quickstart.chat import Answer, chat, post
from trio_worker.standin.tokens import LETTERS

STREAMS = 64
STALL_S = 30.0
TOKENS = 5000
"""Of the stalled answer: some 40 s at 8 ms a token, so that it goes on behind its own back."""
READ_FIRST = 50
"""Tokens that it reads before it stops."""
RECEIVE_BUFFER = 2048
LEFT_S = 30.0


@dataclass
class Stalled:
    """A client that stops reading until it is told to go on."""

    go_on: trio.Event = field(default_factory=trio.Event)
    stuck: trio.Event = field(default_factory=trio.Event)
    answer: Answer = field(default_factory=Answer)

    async def before_read(self) -> None:
        """Trio. Where it stops."""
        if len(self.answer.text) >= READ_FIRST and not self.go_on.is_set():
            self.stuck.set()
            await self.go_on.wait()

    async def run(self, variant: Variant) -> None:
        """Trio. One long answer with logprobs."""
        await chat(
            variant.cluster.port,
            variant.cluster.model_name,
            "A B C D E F G H",
            answer=self.answer,
            before_read=self.before_read,
            receive_buffer=RECEIVE_BUFFER,
            max_tokens=TOKENS,
            logprobs=True,
            top_logprobs=5,
        )

    def whole(self) -> bool:
        """Every token once, in order: the stand-in's letters go round."""
        text = self.answer.text
        first = LETTERS.index(text[0]) if text else 0
        expected = "".join(LETTERS[(first + k) % len(LETTERS)] for k in range(TOKENS))
        entries = sum(len(part["content"]) for part in self.answer.logprobs)
        return text == expected and entries == TOKENS and self.answer.done


async def beside_a_stalled_client(variant: Variant, load: Load) -> dict[str, Any]:
    """Trio. The load's figures beside a stalled client; then that one reads to its end."""
    stalled = Stalled()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stalled.run, variant)
        await stalled.stuck.wait()
        began = trio.current_time()
        before = resident_mb(variant.worker.pid)
        row = await variant.measure(load)
        await trio.sleep_until(began + STALL_S)
        row["memory_growth_mb"] = resident_mb(variant.worker.pid) - before
        stalled.go_on.set()
    row["stalled_seconds"] = STALL_S
    row["stalled_is_whole"] = stalled.whole()
    return row


async def leave_while_stuck(variant: Variant) -> float:
    """Trio. Seconds from a stuck client's departure until its request has ended.

    infinity: not within half a minute. Only our worker can be asked.
    """
    stalled = Stalled()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stalled.run, variant)
        await stalled.stuck.wait()
        await trio.sleep(STALL_S / 3)
        nursery.cancel_scope.cancel()
    left = trio.current_time()
    with trio.move_on_after(LEFT_S):
        while (await _inside(variant))["counts"]["live"]:
            await trio.sleep(0.02)
        return trio.current_time() - left
    return float("inf")


async def _inside(variant: Variant) -> dict[str, Any]:
    answer = await post(variant.system_port, f"/engine/{ROUTE}", {})
    body: dict[str, Any] = answer.body
    return body


async def measure(variant: Variant, rounds: int, say: Any) -> dict[str, Any]:
    """Trio. Rounds of both, taking turns; ``p99_ratio``: with ÷ without, medians."""
    load = Load(streams=STREAMS, window=STALL_S - 10)
    rows: list[dict[str, Any]] = []
    for number in range(rounds):
        for stalled in (False, True) if number % 2 == 0 else (True, False):
            row = await (
                beside_a_stalled_client(variant, load) if stalled else variant.measure(load)
            )
            rows.append({**row, "with_stalled_client": stalled})
            say(
                f"slow client, {variant.name}, {'with' if stalled else 'without'}: "
                f"p99 gap {row['gap_p99_ms']:.1f} ms, max {row['gap_max_ms']:.0f} ms"
                + (f", whole: {row['stalled_is_whole']}" if stalled else "")
            )
            await variant.rest()

    def p99(stalled: bool) -> float:
        return statistics.median(
            row["gap_p99_ms"] for row in rows if row["with_stalled_client"] is stalled
        )

    stalled_rows = [row for row in rows if row["with_stalled_client"]]
    return {
        "p99_ms_without": p99(False),
        "p99_ms_with": p99(True),
        "p99_ratio": p99(True) / p99(False),
        "memory_growth_mb": max(row["memory_growth_mb"] for row in stalled_rows),
        "answers_whole": all(row["stalled_is_whole"] for row in stalled_rows),
        "rows": rows,
    }


def main() -> None:
    """``python -m tests.bench.slow_client``: ours alone."""
    import argparse

    from tests.bench.__main__ import BUILD, Progress
    from tests.bench.launch import VARIANTS
    from tests.bench.serving import open_variant

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variant", choices=VARIANTS, default="ours")
    options = parser.parse_args()

    async def run() -> dict[str, Any]:
        async with open_variant(options.variant, "default", BUILD / "work") as variant:
            await variant.ready()
            result = await measure(variant, options.rounds, Progress())
            if options.variant.startswith("ours"):
                result["seconds_to_leave"] = await leave_while_stuck(variant)
            return result

    result = trio.run(run)
    print(json.dumps({name: value for name, value in result.items() if name != "rows"}, indent=2))


if __name__ == "__main__":
    main()
