"""What operators do about users."""

from fastapi import Response

from fairlane.gateway.api.answers import ErasedUsers
from fairlane.gateway.api.framing import TheActor, TheBody, TheOperator, answer, described, keyed_router
from fairlane.gateway.operator.bodies import read_body
from fairlane.gateway.operator.forget import ForgottenUser

router = keyed_router("operators")


@router.post(
    "/api/admin/users/forget",
    **described("admin.users.erase", "Erase a user", ErasedUsers, body=ForgottenUser),
)
async def forget(operator: TheOperator, actor: TheActor, body: TheBody) -> Response:
    """Forgets a user, for good: removes what the archive and Redis have of their ended tasks, and takes their name, and the ids
    of requests and traces, out of usage records, sums and the audit record. What is on its way there loses it, too.

    Of tasks that were submitted before; those that wait or run go on to their end: cancel them first. Batches that have not ended
    are cancelled, nothing of them is kept, and they are removed once they have ended.
    Call again while `more` is true. What was granted to and paid by users with a quota of their own stays in the ledger.
    """
    return answer(await operator.forget(read_body(ForgottenUser, await body.fields()).user, actor))
