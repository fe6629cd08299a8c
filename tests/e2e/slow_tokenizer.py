# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""``python -m trio_worker`` on SGLang's own scheduler, tokenizing some prompts slowly.

Between a request's registration and its dispatch lies its tokenization, which takes no time for
the prompts of tests. Spawned children run this file again, as ``__mp_main__``: everything sits
under the guard.
"""

from __future__ import annotations

from typing import Any

from trio_worker.__main__ import main
from trio_worker.standin import parse_script

STUCK_S = 2.0
"""Seconds that a prompt with STUCK in it takes; one with SLOW takes 0.04."""

SCRIPT = (
    "fault=delay_dispatch:ms=40:prompt=SLOW,"
    f"fault=delay_dispatch:ms={STUCK_S * 1000:.0f}:prompt=STUCK"
)


def slow_down() -> None:
    """Neither flavour. Every TokenizerManager that is made from now on acts out `SCRIPT`."""
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    from trio_worker.standin.tokenizer import delay_tokenizer

    make = TokenizerManager.__init__

    def make_slow(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        delay_tokenizer(self, parse_script(SCRIPT))

    TokenizerManager.__init__ = make_slow


if __name__ == "__main__":
    slow_down()
    main()
