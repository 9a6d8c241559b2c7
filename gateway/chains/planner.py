"""A chain as it is declared becomes a plan: routes, templates, prices and limits are looked up once, at its submission. Pure."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.chains.plan import Plan as ChainPlan
from fairlane.gateway.chains.plan import Prompt, Runs, StagePlan
from fairlane.gateway.chains.settings import RESERVED, ChainSettings, StageSettings, StageTexts, templates_of
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.core.spec import NO_RULE, Options
from fairlane.gateway.prices.prices import unpack
from fairlane.gateway.prompts.errors import VariablesError
from fairlane.gateway.prompts.templates import Template
from fairlane.gateway.routing.plans import Plan
from fairlane.gateway.routing.routes import Rule
from fairlane.gateway.settings.routing import RouteSettings

UNKNOWN_OUTPUT = 4096
"""Tokens of a stage's answer, where nothing says how long it may be; as in credits.lua."""
MAX_INPUT = 50_000
"""Tokens of a stage's request that are thought of before it is made."""


class Variables(NamedTuple):
    """The variables of a chain."""

    required: frozenset[str]
    optional: frozenset[str]
    any: bool
    """A text reads all of them, whatever their names."""

    def filled(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values, with empty texts for optional variables that are missing. Raise VariablesError."""
        missing = sorted(self.required - given.keys())
        unknown = [] if self.any else sorted(given.keys() - self.required - self.optional)
        if missing or unknown:
            raise VariablesError(missing, unknown, sorted(self.required | self.optional))
        filled = {**dict.fromkeys(self.optional, ""), **given}
        return {name: "" if value is None else value for name, value in filled.items()}


def variables_of(
    chain: ChainSettings, templates: Mapping[str, Template], routes: Mapping[str, RouteSettings]
) -> Variables:
    """Return the variables that a chain uses. Its texts must be valid (`stage_errors`)."""
    used, optional = set[str](), set(chain.optional)
    for stage in chain.stages:
        texts = StageTexts(stage)
        for expression in (texts.when, texts.each):
            if expression is not None:
                optional.update(expression.path[:1])
        for _, text in texts.texts:
            used |= text.variables
        if stage.template is not None and stage.variables is None:
            route = routes.get(stage.template)
            for name in {stage.template} if route is None else templates_of(route, stage.template):
                used.update(templates[name].all_variables)
                optional |= templates[name].optional
    return Variables(
        frozenset(used - optional - RESERVED), frozenset(optional - RESERVED), "variables" in used
    )


class ChainRequest(NamedTuple):
    """A chain that a caller asks for."""

    name: str
    chain: ChainSettings
    variables: dict[str, Any]
    locale: str = ""


class PlannedChain(NamedTuple):
    """The plans of a caller's chain."""

    plan: ChainPlan
    first: Plan
    """The plan of its first stage, whose terms the submission has."""
    downgrade: ChainPlan | None
    """The plan if it cannot be paid; None: it is rejected."""


def plan_chain(
    current: ActiveConfig, caller: Caller, request: ChainRequest, options: Options, subject: str
) -> PlannedChain:
    """Return the plan of a chain. `subject`: as `ActiveConfig.plan` takes it. Raise ApiError: 400, 403, 404."""
    stages, others, firsts = [], [], []
    last = len(request.chain.stages) - 1
    for number, stage in enumerate(request.chain.stages):
        one = _Planning(current, caller, request, options, stage)
        name = stage.names(current.plans.routes.named)
        plain = current.plan(caller, name, lambda: False, subject)
        one = one._replace(streams=one.streaming(plain.rule or NO_RULE, last=number == last))
        seeing = current.plan(caller, name, lambda: True, subject)
        stages.append(one.stage_plan(plain, seeing))
        firsts.append(plain)
        if plain.downgrade is not None and seeing.downgrade is not None:
            others.append(one.stage_plan(plain.downgrade, seeing.downgrade))
    settings = current.settings
    make = partial(
        ChainPlan,
        request.name,
        variables=request.variables,
        answers=settings.structured_output,
        most_bytes=settings.max_body_bytes,
    )
    downgrade = make(stages=others) if len(others) == len(stages) else None
    return PlannedChain(make(stages=stages, quota=caller.quota), firsts[0], downgrade)


class _Planning(NamedTuple):
    """A stage that is being planned."""

    current: ActiveConfig
    caller: Caller
    request: ChainRequest
    options: Options
    stage: StageSettings
    streams: bool = False

    def streaming(self, rule: Rule, *, last: bool) -> bool:
        """Return whether readers see the output of this stage as it arrives. `rule`: of its route."""
        if self.stage.stream is not None:
            return self.stage.stream
        requested = self.options.stream or (rule.stream and not self.options.sets_stream)
        return requested and last and self.stage.each is None

    def stage_plan(self, plain: Plan, seeing: Plan) -> StagePlan:
        """Return the stage, by the plan of its model or route without an image, and with one."""
        stage = self.stage
        runs, sees = self._runs(plain, image=False), self._runs(seeing, image=True)
        return StagePlan(
            stage.name,
            stage.pending,
            runs,
            sees if sees != runs else None,
            stage.type or "openaiLike",
            stage.when,
            stage.each,
            stage.variables,
            stage.payload,
            self.streams,
        )

    def _runs(self, plan: Plan, *, image: bool) -> Runs:
        settings, options = self.current.settings, self.options
        rule, claims = plan.rule or NO_RULE, self.caller.claims
        mode = rule.mode or ("vision" if image else "stream" if self.streams else "batch")
        if claims is not None and claims.mode is not None:
            mode = claims.mode
        forever = not options.wait and options.timeout is None
        wait_ms = settings.tuning.pending_ttl_ms if forever else 0
        limit_ms = settings.run_limit_ms if forever else settings.worker_timeout_ms or 0
        claimed = claims.most_output if claims is not None else None
        return Runs(
            plan.asked,
            plan.model,
            settings.queue_for(plan.tier, mode),
            plan.rule is not None,
            plan.terms.price,
            plan.fallbacks,
            rule.fallback_after_ms if plan.fallbacks else 0,
            wait_ms,
            limit_ms,
            min(filter(None, (rule.max_output_tokens, claimed and claimed[1])), default=0),
            claimed[0] if claimed else "max_tokens",
            settings.structured_output == "repair",
            self._prompt(rule),
        )

    def _prompt(self, rule: Rule) -> Prompt | None:
        stage, optional = self.stage, list(self.request.chain.optional)
        if stage.template is not None:
            plans = self.current.plans
            routed = stage.template in plans.routes.named
            template = plans.templates[(routed and rule.template) or stage.template]
            locale, messages = template.configured(self.request.locale)
            return Prompt(
                template.name,
                messages,
                template.version,
                locale,
                sorted(template.optional),
                template.parameters,
                None if template.json_schema is None else dict(template.json_schema),
            )
        if stage.messages is None:
            return None
        messages = [(message.role, message.content) for message in stage.messages]
        return Prompt(
            stage.name,
            messages,
            optional=optional,
            parameters=dict(stage.parameters),
            json_schema=stage.json_schema,
        )


def reserve_of(plan: ChainPlan, after: int) -> int:
    """Return the estimated cost of the stages behind one, micro-credits."""
    texts = sum(
        len(value) for value in plan.variables.values() if isinstance(value, str) and len(value) < 1 << 16
    )
    total = 0
    for stage in plan.stages[after + 1 :]:
        runs = stage.runs
        if not runs.price or (stage.when in plan.variables and not plan.variables[stage.when]):
            continue
        parts = plan.variables.get(stage.each or "")
        times = len(parts) if isinstance(parts, list) else 1
        output = runs.most_output or UNKNOWN_OUTPUT
        read = min(texts // 4, MAX_INPUT)
        total += times * unpack(runs.price).cost(read, output, None, None)
    return total
