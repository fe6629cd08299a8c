# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The incumbent's tests that can't be run against ours, each with its reason.

An adapter that inherits from the incumbent's handler would pass most of them, by running the
incumbent's own code. They are left out for that. What they check is checked by the rules named.
"""

from __future__ import annotations

MONITOR = "drives the incumbent's monitor, a private context manager"
ABORT = "calls the incumbent's private ordered abort"
READER = "calls the incumbent's private reader generator"
TASKS = "looks into the incumbent's set of abort tasks"
AHEAD = (
    "counts on the engine's stream being asked for its next chunk only after the last one was "
    "delivered; the engine pushes to us (rule 54)"
)

DECODE: dict[str, str] = {
    "test_cancellation_monitor_rechecks_shutdown_after_cleanup": f"{MONITOR}: rules 40, 66",
    "test_cancellation_monitor_keeps_pending_ordered_abort_alive": f"{MONITOR}: rules 23, 63",
    "test_pending_ordered_abort_has_bounded_registration_wait": f"{MONITOR}: rule 20",
    "test_cancelled_stream_drain_is_bounded": f"{READER}: rule 47",
    "test_cancelled_stream_starts_deadline_when_chunk_is_already_ready": (
        f"{READER}, and replaces asyncio.wait in it: rule 46"
    ),
    "test_cancelled_stream_drain_does_not_wait_for_resistant_iterator": f"{READER}: rule 48",
    "test_cancellation_monitor_aborts_parallel_ids_on_stream_close": f"{MONITOR}: rule 64",
    "test_cancellation_monitor_logs_only_submitted_abort": f"{ABORT}: rules 26, 28",
    "test_cancellation_monitor_stops_when_request_finishes": f"{MONITOR}: rule 27",
    "test_decode_stream_exit_retains_pending_abort_wait": (
        f"{TASKS} and stops the clock of its polling: rules 34, 69, 70"
    ),
    "test_cancellation_monitor_without_tokenizer_manager": f"{MONITOR}: rule 13",
    "test_cancellation_monitor_without_request_registry": f"{MONITOR}: rule 16",
    "test_cancellation_monitor_retries_only_without_ordered_dispatch": f"{MONITOR}: rules 29, 30",
    "test_cancellation_monitor_bounds_abort_retries": f"{ABORT}: rules 25, 31",
    "test_stream_drain_starts_before_abort_retries_complete": f"{MONITOR} and its reader: rule 32",
    "test_cancel_abort_tasks_cancels_and_releases_owned_tasks": f"{TASKS}: rule 34",
    "test_base_worker_cleanup_cancels_abort_tasks": f"{TASKS}: rule 34",
    "test_cancellation_monitor_preserves_abort_ordering": f"{MONITOR}: rules 14, 19, 24",
    "test_ordered_abort_stops_when_stream_ends_before_registration": f"{ABORT}: rule 21",
    "test_cancellation_monitor_logs_fallback_abort_failure": f"{MONITOR}: rule 16",
    "test_shutdown_survives_ordered_abort_cleanup": f"{MONITOR}: rule 36",
    "test_unsupported_runtime_uses_response_id_cancellation[True]": f"{AHEAD}: rules 5, 7",
    "test_native_session_cancellation_uses_confirmed_response_id": f"{AHEAD}: rules 4, 82",
}

PREFILL: dict[str, str] = {
    "test_native_batched_prefill_disables_ordered_cancellation": (
        "replaces the incumbent's private consumer of results: rule 3"
    ),
    "test_prefill_reports_kv_cache_hit_after_bootstrap": f"replaces and {MONITOR}: rule 83",
    "test_prefill_omits_kv_cache_hit_after_cancellation": f"replaces and {MONITOR}: rules 83, 85",
}

PART = "calls one private step of the incumbent's, which ours runs as it is"

IMAGE: dict[str, str] = {
    "test_initialization": PART,
    "test_initialization_with_url_base": PART,
    "test_cleanup": "calls the incumbent's cleanup; here the generator's host ends it",
    "test_parse_size": PART,
    "test_parse_size_auto_uses_default": PART,
    "test_parse_size_invalid_raises_invalid_argument": PART,
    "test_encode_base64": PART,
    "test_upload_to_fs": PART,
    "test_generate_images_with_numpy_array": PART,
    "test_generate_images_with_pil_image": PART,
    "test_generate_images_with_bytes": PART,
}

RERANK: dict[str, str] = {
    "test_builds_pairs_sorts_scores_and_applies_top_n": (
        "wants SGLang's rids to be the caller's trace id, which has duplicates refused (B21)"
    ),
    "test_dedicated_pooling_registration_health_and_cleanup": (
        "calls the incumbent's start-up; ours: tests/roles/test_serving.py"
    ),
}

NOT_APPLICABLE: dict[str, dict[str, str]] = {
    "test_sglang_decode_cancellation.py": DECODE,
    "test_sglang_prefill_handler.py": PREFILL,
    "test_sglang_image_diffusion_handler.py": IMAGE,
    "test_sglang_rerank_handler.py": RERANK,
}
"""File -> test -> reason; without a parameter set in its name, a test is left out with all."""
