# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""``python -m tests.trials``: stop workers at random tokens and see that no answer is lost."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import trio

from tests.e2e.backing import Backing
from tests.trials.cases import BY_NAME, CASES, Case
from tests.trials.members import Members, make_backing, open_members
from tests.trials.results import Results, table
from tests.trials.rolling import run_rolling
from tests.trials.trial import Outcome, run_trial

RESULTS = Path("build/trials/results.json")
IMPLEMENTATIONS = ("ours", "incumbent")
ROLLING_CLIENTS = 64
ROLLING_ROUNDS = 3


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Pure but for usage errors."""
    parser = argparse.ArgumentParser(prog="python -m tests.trials", description=__doc__)
    parser.add_argument("--n", type=int, default=10, help="trials of each case (10)")
    parser.add_argument("--case", action="append", choices=list(BY_NAME), help="only these cases")
    parser.add_argument("--only", choices=IMPLEMENTATIONS, help="one implementation only")
    parser.add_argument("--real", action="store_true", help="SGLang's own scheduler, reciting")
    parser.add_argument("--streams", type=int, default=4, help="clients in a trial (4)")
    parser.add_argument("--rounds", type=int, default=ROLLING_ROUNDS, help="rolling restarts (3)")
    parser.add_argument("--clients", type=int, default=ROLLING_CLIENTS, help="under it (64)")
    parser.add_argument("--step-ms", type=float, default=8.0, help="one token of the stand-in")
    parser.add_argument("--seed", type=int, default=None, help="of the moments and their order")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--logs", type=Path, help="keep all logs in this folder")
    return parser.parse_args(argv)


class Trials:
    """One run of all trials."""

    def __init__(self, options: argparse.Namespace, backing: Backing, length: int) -> None:
        self._options = options
        self._backing = backing
        self._length = length
        self._seed = options.seed if options.seed is not None else random.randrange(10**6)
        self._started = trio.current_time()
        self.results = Results(
            settings={
                "n": options.n,
                "seed": self._seed,
                "engine": "SGLang on the CPU" if options.real else "stand-in scheduler",
                "tokens": self._length,
                "streams": options.streams,
                "processors": os.cpu_count(),
            }
        )

    def say(self, text: str) -> None:
        """One line with the seconds since the start."""
        print(f"[{trio.current_time() - self._started:6.0f} s] {text}", flush=True)

    def cases(self, source: random.Random) -> list[Case]:
        """Every case n times, in random order."""
        chosen = [BY_NAME[name] for name in self._options.case or BY_NAME]
        cases = [case for case in CASES if case in chosen for _ in range(self._options.n)]
        source.shuffle(cases)
        return cases

    async def run(self) -> None:
        """Trio. One implementation after the other, the same cases at the same moments."""
        names = [self._options.only] if self._options.only else list(IMPLEMENTATIONS)
        for name in names:
            source = random.Random(self._seed)
            self.results.outcomes[name] = []
            keep = self._options.logs / name if self._options.logs else None
            self.say(f"{name}: a frontend and two workers start")
            async with open_members(name, self._backing, keep=keep) as members:
                await self._run_all(members, source)

    async def _run_all(self, members: Members, source: random.Random) -> None:
        cases = self.cases(source)
        outcomes = self.results.outcomes[members.implementation]
        # A worker's environment is that of the case that will end it.
        ahead: list[Case | None] = [*cases, None, None]
        line = [await members.start(ahead[0]), await members.start(ahead[1])]
        for number, case in enumerate(cases):
            async with trio.open_nursery() as nursery:

                async def replace(number: int = number) -> None:
                    line.append(await members.start(ahead[number + 2]))

                needed = number + 1 < len(cases) or self._options.rounds
                if needed and case.streams:
                    nursery.start_soon(replace)
                outcome = await run_trial(
                    members,
                    line[0],
                    case,
                    length=self._length,
                    count=self._options.streams,
                    source=source,
                )
                outcomes.append(outcome)
                self.results.write(self._options.results)
                self.say(
                    f"{members.implementation}, trial {number + 1} of {len(cases)}, {case.name}: "
                    + describe(outcome)
                )
                if needed and not case.streams:  # its time is the point: nothing loads meanwhile
                    nursery.start_soon(replace)
            del line[0]
        if self._options.rounds:
            self.results.rolling[members.implementation] = await run_rolling(
                members,
                line,
                rounds=self._options.rounds,
                clients=self._options.clients,
                length=self._length,
                say=self.say,
            )
            self.results.write(self._options.results)


def describe(outcome: Outcome) -> str:
    """One line; pure."""
    parts = [f"status {outcome.status}", f"out after {outcome.exit_s:.1f} s"]
    if outcome.streams:
        parts.insert(0, f"{outcome.exact} of {outcome.streams} answers exact")
        parts.append(f"{outcome.migrations} migrated")
    if not outcome.right_status:
        parts.append("WRONG STATUS")
    if outcome.orphans:
        parts.append(f"{outcome.orphans} ORPHANS")
    if outcome.left_in_discovery:
        parts.append(f"{outcome.left_in_discovery} left in discovery")
    return ", ".join([*parts, *outcome.wrong])


async def run(options: argparse.Namespace, backing: Backing, length: int) -> int:
    """Trio. 0 if ours did all that was promised."""
    trials = Trials(options, backing, length)
    await trials.run()
    print(f"\n{table(trials.results)}\n\n{options.results}")
    return 0 if trials.results.good else 1


def main() -> None:
    """Neither flavour. The command line."""
    options = parse(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="trio-worker-trials-") as folder:
        # Outside of Trio: the reciting model may have to be built first.
        backing, length = make_backing(Path(folder), real=options.real, step_ms=options.step_ms)
        sys.exit(trio.run(run, options, backing, length))


if __name__ == "__main__":
    main()
