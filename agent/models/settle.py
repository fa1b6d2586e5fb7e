"""From what a reader or a connection says to the outcome that is logged. Pure."""

from collections.abc import Callable

from agent.models.client import ModelRequest, cost_usd, estimated_usage
from agent.models.faults import Fault
from agent.models.verdicts import Faulty, Finished
from eventlog.outcomes import ModelFailed, ModelReplied


def settle(
    verdict: Finished | Faulty, request: ModelRequest, wait: Callable[[], int], first_byte_ms: int, total_ms: int
) -> ModelReplied | ModelFailed:
    """`wait` is drawn only for a failure that is retried. Usage that was not reported is estimated by bytes."""
    if isinstance(verdict, Faulty):
        return failed(verdict.fault, wait, charged_usd=charge(verdict, request))
    usage = verdict.usage or estimated_usage(len(request.body), verdict.output_bytes)
    return ModelReplied(
        message=verdict.message,
        stop=verdict.stop,
        usage=usage,
        cost_usd=cost_usd(usage, request.prices),
        model=verdict.model,
        first_byte_ms=first_byte_ms,
        total_ms=total_ms,
    )


def failed(fault: Fault, wait: Callable[[], int], status: int | None = None, charged_usd: float = 0.0) -> ModelFailed:
    wait_ms = wait() if fault.retry else 0
    return ModelFailed(
        fault=fault.kind, text=fault.text, status=status, retry=fault.retry, wait_ms=wait_ms, charged_usd=charged_usd
    )


def charge(verdict: Faulty, request: ModelRequest) -> float:
    """What a broken reply may have cost: as reported, else estimated from what went out and what came; 0 where no
    price is known or nothing shows that the model worked."""
    usage = verdict.usage
    if usage is None and (verdict.output_bytes or verdict.fault.kind in {"cut", "timeout"}):
        usage = estimated_usage(len(request.body), verdict.output_bytes)
    return (cost_usd(usage, request.prices) or 0.0) if usage is not None else 0.0
