"""What `plough tune` found, as a plan takes it: defaults below everything the user sets. Pure.

Knows nothing of how it was measured or where it is kept (`plough.tune`).
"""

from __future__ import annotations

from msgspec.structs import replace

from plough.contract import Env
from plough.plan.environment import THREADS
from plough.plan.plan import PlanRequest
from plough.report import bucket_words

__all__ = ["left_to_us", "tuned_words", "user_decided"]


def user_decided(request: PlanRequest) -> tuple[str | None, str | None, str | None]:
    """The flag or variable with which the user decided threads, oneCCL workers, bucket size; else None."""
    user = request.user_environment
    threads = {"--threads": request.threads, "--reserve-cores": request.reserve_cores}
    flags = [flag for flag, value in threads.items() if value is not None]
    workers = "--ccl-worker-count" if request.ccl_worker_count is not None else None
    return (
        next((name for name in (*flags, *(name for name in THREADS if name in user))), None),
        workers or (Env.CCL_WORKER_COUNT if Env.CCL_WORKER_COUNT in user else None),
        Env.PLOUGH_BUCKET_MB if Env.PLOUGH_BUCKET_MB in user else None,
    )


def left_to_us(request: PlanRequest) -> PlanRequest:
    """The request without those tuned values that the user has decided; without any, if all were."""
    tuned = request.tuned
    if tuned is None:
        return request
    threads, workers, bucket = decided = user_decided(request)
    left = replace(
        tuned,
        reserve_cores=None if threads else tuned.reserve_cores,
        ccl_worker_count=None if workers else tuned.ccl_worker_count,
        bucket_mb=None if bucket else tuned.bucket_mb,
    )
    nothing = replace(tuned, reserve_cores=None, ccl_worker_count=None, bucket_mb=None)
    return replace(request, tuned=None if left == nothing and any(decided) else left)


def tuned_words(request: PlanRequest, threads: int) -> str | None:
    """One sentence: what a request that `left_to_us` returned takes over, for a plan of so many threads."""
    tuned = request.tuned
    if tuned is None:
        return None
    parts = []
    if tuned.reserve_cores is not None:
        parts.append(f"threads {threads}")
    if tuned.ccl_worker_count is not None:
        parts.append(f"workers {tuned.ccl_worker_count}")
    if tuned.bucket_mb is not None:
        parts.append(bucket_words(tuned.bucket_mb))
    return f"{', '.join(parts) or 'all as by default'}: {tuned.why}; --no-tuned to ignore"
