# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Where each rule of `cancellation-rules.md` is proved, and why a few of them cannot be.

A rule is proved here by the tests whose names begin with ``test_rule_NNN_``; `tests_of` finds
them. Rules about the process need a process, so their tests are where the process is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

RULES_HERE = frozenset({*range(1, 91), *range(109, 122), *range(129, 133)})
"""Rules about one request: these need a test here or a reason below."""

NOT_HERE: dict[int, str] = {
    9: "names the incumbent's states and debug lines; what follows from them is rules 10-18, 45-53",
    54: "a reader that is one chunk ahead at most: the engine pushes outputs to us (the tap), so"
    " that what is bounded is what waits (tests/compat/test_handover.py, D31)",
    57: "a cost, not a behaviour: make bench",
    63: "the incumbent's future of the request id, which we do not have; its effect is rule 21",
    109: "the frontend's decision, in Rust; ours is the class of the error (rule 110), seen end to"
    " end in tests/e2e",
    114: "the router's decision, in Rust; seen end to end in tests/e2e",
}

ELSEWHERE: dict[range, str] = {
    range(91, 109): "tests/test_shutdown.py, tests/compat/test_signals.py, tests/e2e: signals,"
    " the shutdown plan, exit status",
    range(122, 129): "tests/compat/test_signals.py, tests/test_shutdown.py, tests/e2e: second"
    " signals, withdrawal, engine death, lost lease, start-up",
}

INCUMBENT_ONLY: dict[int, str] = {
    11: "our handlers always belong to a worker that can shut down",
    13: "our engine owns its tokenizer manager: there is no engine without one",
    43: "there is no monitor task that somebody could cancel; a cancelled owner is rule 131",
}
"""Rules of which only the incumbent's half can be run."""


def tests_of(names: Iterable[str]) -> dict[int, list[str]]:
    """Test function names by the rule that they are named after."""
    found: dict[int, list[str]] = {}
    for name in names:
        match = re.match(r"test_rule_(\d{3})_", name)
        if match:
            found.setdefault(int(match.group(1)), []).append(name)
    return found


def all_names() -> list[str]:
    """Every test function of this folder, from its source."""
    return [
        name
        for file in sorted(Path(__file__).parent.glob("test_rule_*.py"))
        for name in re.findall(r"^async def (test_\w+)", file.read_text(), re.MULTILINE)
    ]
