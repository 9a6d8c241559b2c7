"""Permits in the store: used once, over all replicas, and released."""

from fairlane.queues.replies import read_retry_at
from fairlane.queues.scheduler import Scheduler, task_end
from fairlane.queues.tasks import Admitted, PermitEnd, RetryAt


async def use_permit(scheduler: Scheduler, task_id: str, nonce: str) -> tuple[Admitted, int, RetryAt]:
    """Use the permit of a task, which works once over all replicas; a call of the same nonce may be repeated.

    The permit then holds its slot until `release_permit`, or until its time is over. Return the outcome, the epoch that
    `release_permit` needs, and when the next task of its model may start, if time alone is in the way.
    """
    said = await scheduler.of_task(task_id).call("use_permit", {"id": task_id, "nonce": nonce})
    if "waited_ms" in said:
        scheduler.metrics.granted(said["queue"], said["model"], said["waited_ms"])
    later = read_retry_at(said.get("later", ()))[0]
    return Admitted(said["outcome"]), said.get("epoch", 0), later


async def release_permit(scheduler: Scheduler, task_id: str, epoch: int, rest: bytes) -> PermitEnd:
    """What was let in with a permit has ended: its task completes, with a terminal event of these fields."""
    ask = {"id": task_id, "epoch": epoch, "rest": rest.decode()}
    said = await scheduler.of_task(task_id).call("release_permit", ask)
    if "account" in said:
        scheduler.metrics.ended(task_end(said["account"]))
    return PermitEnd(said["outcome"])
