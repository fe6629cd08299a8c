# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Roles that answer once (embedding, rerank, images, videos): the answer is passed on as it is."""

from typing import Any

from trio_worker.responses.state import Responses


def wrap_answer(answer: Any) -> dict[str, Any]:
    """An answer in its final form, as the one chunk of its stream."""
    return {"answer": answer}


class AnswerResponses(Responses):
    """The one chunk that `wrap_answer` made is the whole response.

    Nothing is known of engine ids: such a stream is ended by closing it, not by naming it.
    """

    __slots__ = ()

    def convert(self, chunk: dict[str, Any], *, shutting_down: bool) -> Any:
        self._finished.add(0)
        return chunk["answer"]
