"""Chains as tests declare them, and what they come to."""

from collections.abc import Mapping
from typing import Any

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.chains.engine import NextStage, NoStage, next_stage
from fairlane.gateway.chains.plan import Plan, encode, read_plan
from fairlane.gateway.chains.planner import ChainRequest, plan_chain, variables_of
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.core.spec import Options
from fairlane.gateway.settings import Settings

PAID = Caller("ann", "paid", "k")
JOB_MATCH: dict[str, Any] = {
    "models": {"chat": {"fallbacks": ["small"]}, "small": {}, "eyes": {}},
    "routes": {
        "sum_up": {"mode": "batch", "model": "small", "tiers": {"paid": {"model": "chat"}}},
        "plain": {"model": "small"},
    },
    "templates": {
        "sum_up": {
            "messages": [{"role": "user", "content": "Sum up:\n{{ job }}"}],
            "json_schema": {"type": "object", "required": ["title"]},
        }
    },
    "chains": {
        "job_match": {
            "optional": ["notes"],
            "stages": [
                {
                    "name": "ocr",
                    "when": "pages",
                    "each": "pages",
                    "model": "eyes",
                    "messages": [
                        {
                            "role": "user",
                            "content": [
                                {"type": "text", "text": "Page {{ index }}"},
                                {"type": "image_url", "image_url": {"url": "{{ item }}"}},
                            ],
                        }
                    ],
                },
                {
                    "name": "summary",
                    "template": "sum_up",
                    "variables": {"job": "{{ job }}{{ stages.ocr.content }}"},
                },
                {
                    "name": "match",
                    "model": "chat",
                    "messages": [
                        {
                            "role": "user",
                            "content": "{{ resume }} as {{ stages.summary.json.title }}{{ notes }}",
                        }
                    ],
                },
            ],
        }
    },
}


def settings_of(**stages: Any) -> Settings:
    """Settings with a chain `c` of these stages."""
    listed = [{"name": name, **said} for name, said in stages.items()]
    return Settings(**{**JOB_MATCH, "chains": {"c": {"stages": listed}}})


def plan_of(
    settings: Settings, name: str, given: Mapping[str, Any], caller: Caller = PAID, **options: bool
) -> Plan:
    """The plan of a configured chain, as it is read again."""
    current, chain = ActiveConfig(settings), settings.chains[name]
    takes = variables_of(chain, current.plans.templates, settings.routes)
    asked = ChainRequest(name, chain, takes.filled(given))
    return read_plan(encode(plan_chain(current, caller, asked, Options(**options), "x").plan))


def after(
    plan: Plan, number: int, results: Mapping[tuple[int, int], bytes] | None = None
) -> NextStage | NoStage:
    """What follows a stage."""
    return next_stage(plan, number, results or {})
