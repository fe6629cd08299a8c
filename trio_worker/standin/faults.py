# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""Which of the scripted faults a request gets."""

import random
from collections.abc import Callable, Collection, Sequence

from trio_worker.standin.script import Fault, FaultKind, ScriptError, parse_faults

# Key in a request's sampling_params["custom_params"] whose value is a list of faults as text.
CUSTOM_PARAMETER = "stand_in"

WORKER_SIDE = frozenset({FaultKind.DELAY_REGISTER, FaultKind.DELAY_DISPATCH})


def own_faults(custom_params: object) -> tuple[Fault, ...]:
    """Faults that the request brings along. Text that can't be parsed raises ScriptError."""
    if not isinstance(custom_params, dict) or CUSTOM_PARAMETER not in custom_params:
        return ()
    text = custom_params[CUSTOM_PARAMETER]
    if not isinstance(text, str):
        raise ScriptError(f"custom parameter {CUSTOM_PARAMETER!r} must be a string, got {text!r}")
    return parse_faults(text)


class FaultChooser:
    """Draws the faults of one request after the other.

    One random number a fault and request, whether its selectors match or not: the same seed and
    order of arrival give the same faults.
    """

    def __init__(self, faults: Sequence[Fault], seed: int, kinds: Collection[FaultKind]) -> None:
        self._faults = tuple(fault for fault in faults if fault.kind in kinds)
        self._random = random.Random(seed)
        self._kinds = kinds

    def choose(
        self,
        *,
        custom_params: object,
        max_new_tokens: int | None,
        prompt: Callable[[], str],
    ) -> tuple[Fault, ...]:
        """The faults of the next request: its own ones first, then the drawn ones.

        prompt is only called if a fault asks for a text in it.
        """
        chosen = [fault for fault in own_faults(custom_params) if fault.kind in self._kinds]
        for fault in self._faults:
            drawn = fault.rate >= 1.0 or self._random.random() < fault.rate
            if (
                drawn
                and (fault.max_tokens is None or fault.max_tokens == max_new_tokens)
                and (not fault.prompt or fault.prompt in prompt())
            ):
                chosen.append(fault)
        return tuple(chosen)
