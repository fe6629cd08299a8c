# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Bad requests get the incumbent's answer, and harm nobody."""

from __future__ import annotations

import pytest

from tests.e2e.bad_input import BAD, RECORDED, ask
from tests.e2e.served import Served
from trio_worker.quickstart.recitation import PASSAGE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", BAD)
async def test_same_refusal_as_the_incumbents(served: Served, name: str, stream: bool) -> None:
    refusal, answer = await ask(served, name, stream=stream)
    assert refusal == RECORDED[name][stream], answer.errors


async def test_worker_serves_on_after_all_of_them(served: Served) -> None:
    for name in BAD:
        await ask(served, name, stream=True)
    answer = await served.ask("Recite.", max_tokens=40)
    assert answer.text == PASSAGE[:40]
    await served.wait_idle()
