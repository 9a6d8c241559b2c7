"""What is answered to those who ask for permits."""

from typing import Literal

from fairlane.gateway.api.models.base import Answer


class LetIn(Answer):
    """The request may pass; the header `X-Fairlane-Receipt` is what its end is to be reported with."""

    task_id: str


class LeftOff(Answer):
    """`ended`: it has ended now; `over`: it had before, or its time was over."""

    status: Literal["ended", "over"]
