# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The slow imports, paid once and in the right order, with their warnings named.

Import this module from a ``conftest.py``: loading SGLang takes about 20 s, more than a test's
time-out should have to cover. SGLang sets the event loop policy when it is imported, so it has to
be loaded before any ``trio.run``.
"""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    # Every line is a warning that a pinned dependency raises while it is imported.
    for _category, _message in (
        (DeprecationWarning, r"builtin type (SwigPy\w+|swigvarlink) has no __module__ attribute"),
        (DeprecationWarning, r"`torch\.jit\.script(_method)?` is deprecated"),
        (UserWarning, r"Only CUDA, HIP and XPU support AWQ currently"),
        (UserWarning, r"Only CUDA, MUSA and NPU support GGUF quantization currently"),
    ):
        warnings.filterwarnings("ignore", message=_message, category=_category)

    import dynamo.sglang.request_handlers.llm.decode_handler
    import dynamo.sglang.request_handlers.llm.diffusion_handler
    import dynamo.sglang.request_handlers.llm.prefill_handler
    import sglang.srt.entrypoints.engine
    import sglang.srt.managers.tokenizer_manager

LOADED = (dynamo, sglang)
"""So that the imports above are used."""
