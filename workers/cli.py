"""`fairlane worker`: run handlers from the command line."""

import asyncio
import importlib
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec
import typer
from typer.core import TyperGroup

from fairlane.workers import protocol
from fairlane.workers.adapters import PROVIDERS, SIMULATED, Accident, SimulateAdapter, Simulation, echo
from fairlane.workers.adapters.quirks import read_quirks
from fairlane.workers.options import expanded
from fairlane.workers.sdk import Delta, GatewayRefusedError, Result, Task, TaskError, Usage, Worker
from fairlane.workers.sdk.dry_run import dry_run
from fairlane.workers.sdk.handlers import ANY_MODEL, Item
from fairlane.workers.sdk.values import as_json

if TYPE_CHECKING:
    from fairlane.workers.adapters.smoke_test import Finding
    from fairlane.workers.adapters.upstream import Upstream

HTTP_SLOTS = 64
"""Of a worker for endpoints: each of them costs as much memory as a request and an answer, and nothing while it is free."""
USAGE_EXIT = 2
FAILED_EXIT = 1


class Workers(TyperGroup):
    """The commands of workers. A provider's name is short for `start --provider NAME`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command, its name and its arguments."""
        named = args[0] in (*PROVIDERS, "http", "echo")
        return super().resolve_command(ctx, ["start", "--provider", *args] if named else args)


app = typer.Typer(
    cls=Workers,
    name="worker",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="""Run workers: processes that carry out the gateway's tasks.

A worker dials out to the gateway, so it needs no open port. It finds the gateway through --gateway or
FAIRLANE_GATEWAY (default http://127.0.0.1:8080) and proves itself with the token in FAIRLANE_WORKER_TOKEN or
--token-file. SIGTERM or Ctrl-C lets running tasks finish; a second one stops them.

Example, four ways to serve your first model:

  fairlane worker start --provider echo      (short: fairlane worker echo)

  fairlane worker start --provider ollama --model llama3.2 --slots 4

  ANTHROPIC_API_KEY=… fairlane worker start --provider anthropic --model claude-sonnet-5 --slots 8

  fairlane worker run my_module:worker

What a provider and a model can do:

  fairlane worker test --provider ollama --model llama3.2
""",
)

Target = Annotated[
    str, typer.Argument(metavar="MODULE:WORKER", help="Where your Worker is, e.g. app:worker.")
]


@dataclass(frozen=True)
class WorkerOptions:
    """How a worker connects and runs; options that are not given leave it as it is."""

    gateway: Annotated[
        str | None,
        typer.Option(
            help="http://host:port or ws://host:port/ws. [env: FAIRLANE_GATEWAY; http://127.0.0.1:8080]"
        ),
    ] = None
    name: Annotated[
        str | None,
        typer.Option(help="The name that people see. [default: the Worker's own, else the host's]"),
    ] = None
    slots: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Tasks at a time. [default: the Worker's own, else 1]")
    ] = None
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file with the worker token. [default: the env variable FAIRLANE_WORKER_TOKEN]"),
    ] = None
    drain_ms: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Time for running tasks after the first signal. [default: the Worker's own, else 30000]",
        ),
    ] = None

    def serve(self, worker: Worker) -> None:
        """Work until a signal."""
        for option in ("gateway", "name", "slots", "drain_ms"):
            if (value := getattr(self, option)) is not None:
                setattr(worker, option, value)
        if self.token_file is not None:
            worker.token = _read(self.token_file, "token file").decode(errors="replace").strip()
            if not worker.token:
                _stop(f"The token file {self.token_file} is empty.")
        try:
            worker.check()
        except ValueError as error:
            _stop(str(error))
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        for noisy in ("httpx2", "httpcore2", "websockets"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        try:
            worker.run()
        except GatewayRefusedError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(FAILED_EXIT) from None


@dataclass(frozen=True)
class UpstreamOptions:
    """A provider or server, and the models to ask there."""

    provider: Annotated[str, typer.Option(help=f"{', '.join(PROVIDERS)}, http (endpoints) or echo.")]
    model: Annotated[
        list[str] | None, typer.Option(help="A model to serve; may be repeated. * serves any.")
    ] = None
    base_url: Annotated[
        str | None,
        typer.Option(
            help="What precedes the provider's paths, e.g. http://localhost:8000/v1. [default: its own]"
        ),
    ] = None
    upstream_model: Annotated[
        list[str] | None,
        typer.Option(
            help="The upstream's name for a --model, if it has another; once for each, in their order."
        ),
    ] = None
    api_key_env: Annotated[
        str | None,
        typer.Option(help="The environment variable with the key. [default: the provider's usual one]"),
    ] = None
    task_type: Annotated[
        list[str] | None,
        typer.Option(
            help="A type of tasks to offer, e.g. openaiSpeech; may be repeated. [default: chat, completions and embeddings, as "
            "far as the provider has them]"
        ),
    ] = None
    quirk: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=VALUE: what the server takes otherwise, such as stream_options=omit, max_tokens=max_completion_tokens or "
            "system=first, or a member that clients can set, such as provider=allow (docs/models.md); may be repeated. A "
            "rejection that names such a member is learnt from."
        ),
    ] = None

    def adapter(self, ttft_ms: int, idle_ms: int, total_ms: int) -> "Upstream":
        """Return the adapter that these options ask for. End the command with a message if they make no sense."""
        from fairlane.workers.adapters.clock import Limits  # noqa: PLC0415

        models, named = self.model or [], self.upstream_model
        provider = PROVIDERS.get(self.provider) or _stop(
            f"{self.provider!r} is not a provider; there are {', '.join(PROVIDERS)}."
        )
        if not models:
            _stop("Name the models to serve with --model.")
        if named and len(named) != len(models):
            _stop(f"There are {len(models)} --model but {len(named)} --upstream-model; give one for each.")
        variable = self.api_key_env or provider.key_env
        key = os.environ.get(variable)
        if not key and (self.api_key_env or (provider.needs_key and self.base_url is None)):
            where = f"; the key of {provider.name} belongs there (or elsewhere: --api-key-env)"
            _stop(f"The environment variable {variable} is not set{'' if self.api_key_env else where}.")
        try:
            return provider.adapter(
                base_url=self.base_url,
                models=dict(zip(models, named, strict=True)) if named else models,
                api_key=key,
                task_types=self.task_type,
                quirks=read_quirks(self.quirk or ()),
                limits=Limits(ttft_ms, idle_ms, total_ms),
            )
        except ValueError as error:
            _stop(str(error))


@app.command()
@expanded
def run(target: Target, options: WorkerOptions) -> None:
    """Run a Worker of your own.

    Example: a file app.py with

    \b
      from fairlane import Worker

    \b
      worker = Worker()

    \b
      @worker.handler(models=["shout"])
      async def shout(task, context):
          for word in task.payload["messages"][-1]["content"].split():
              yield word.upper() + " "

    is run with: fairlane worker run app:worker --slots 4
    """
    options.serve(_load(target))


Ttft = Annotated[int, typer.Option("--ttft-ms", min=1, help="Longest wait for a stream's first output.")]
Idle = Annotated[int, typer.Option("--idle-ms", min=1, help="Longest silence in a stream.")]
Total = Annotated[int, typer.Option("--total-ms", min=1, help="Longest request.")]


@app.command()
@expanded
def start(
    source: UpstreamOptions,
    options: WorkerOptions,
    upstream: Annotated[
        str | None,
        typer.Option(
            help="What distinguishes this upstream from others: workers that give the same name share its circuit breaker and "
            "its cooldowns. [default: host and port]"
        ),
    ] = None,
    ttft_ms: Ttft = 60_000,
    idle_ms: Idle = 30_000,
    total_ms: Total = 300_000,
) -> None:
    """Pass tasks to a provider or a model server.

    --provider openai with --base-url is any server with OpenAI's API; http calls the endpoints that the gateway knows; echo
    answers with the request.

    fairlane worker start --provider vllm --model qwen --slots 8

    ANTHROPIC_API_KEY=… fairlane worker start --provider anthropic --model claude-sonnet-5 --slots 8
    """
    worker = Worker(upstream=upstream)
    if source.provider == "http":
        from fairlane.workers.adapters.endpoints.http import HttpAdapter  # noqa: PLC0415 (slow to import)

        HttpAdapter().attach(worker)
        worker.slots = HTTP_SLOTS
    elif source.provider == "echo":
        worker.handler(models=source.model or [ANY_MODEL])(echo)
    else:
        source.adapter(ttft_ms, idle_ms, total_ms).attach(worker)
    options.serve(worker)


@app.command("test")
@expanded
def check_provider(
    source: UpstreamOptions,
    ttft_ms: Ttft = 30_000,
    idle_ms: Idle = 30_000,
    total_ms: Total = 60_000,
    require: Annotated[
        list[str] | None,
        typer.Option(
            help="A check that has to work in addition to answer and stream, e.g. tools; may be repeated."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each check.")] = False,
) -> None:
    """Ask a provider whether a model works, with a few small requests and no gateway.

    Reports for each request whether it worked, its speed, the usage that the provider reported, and the error code of a task.
    It costs some hundred tokens for each model. Exit code 0 if answers and streams work, and everything that --require lists;
    else 1.

    Example: DEEPSEEK_API_KEY=… fairlane worker test --provider deepseek --model deepseek-chat
    """
    models = source.model or []
    if ANY_MODEL in models:
        _stop("A check needs the names of models; * is none.")
    adapter = source.adapter(ttft_ms, idle_ms, total_ms)
    if "openaiLike" not in adapter.task_types:
        _stop("A check begins with chats: name --task-type openaiLike, too.")
    needed = {"answer", "stream", *(require or ())}
    if unknown := needed - {*CHECKS}:
        _stop(f"There is no check {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}.")
    for noisy in ("httpx2", "httpcore2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        good = asyncio.run(_check(adapter, source.provider, models, needed, as_json))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(0 if good else FAILED_EXIT)


CHECKS = ("models", "answer", "stream", "tools", "json", "refusal")


async def _check(
    adapter: "Upstream", provider: str, models: list[str], needed: set[str], as_json: bool
) -> bool:
    """Examine each model and print the result. Return whether all that is needed works."""
    from fairlane.workers.adapters.smoke_test import examine  # noqa: PLC0415 (it takes a while)

    good = True
    try:
        for model in models:
            if not as_json:
                typer.echo(f"{provider}, model {model}")
            async for finding in examine(adapter, model):
                good = good and (finding.works or finding.check not in needed)
                shown = {"provider": provider, "model": model, **msgspec.to_builtins(finding)}
                typer.echo(msgspec.json.encode(shown).decode() if as_json else _line(finding))
                sys.stdout.flush()
    finally:
        await adapter.aclose()
    return good


def _line(finding: "Finding") -> str:
    parts = [finding.says] if finding.says else []
    if (failure := finding.failure) is not None:
        status = f" ({failure.http_status})" if failure.http_status else ""
        again = "would be tried again" if failure.retryable else "final"
        parts.append(f"{failure.code}{status}, {again}: {failure.message}")
    if finding.ttft_ms is not None:
        parts.append(f"first token after {finding.ttft_ms} ms")
    if finding.tokens_per_second is not None:
        parts.append(f"{finding.tokens_per_second:g} tokens/s")
    if finding.usage is not None:
        usage = {
            name: finding.usage[name] for name in finding.usage if name not in ("inputTokens", "outputTokens")
        }
        parts.append(f"usage {_json(usage)}")
    elif finding.check in ("answer", "stream") and finding.works:
        parts.append("no usage reported")
    word = "works" if finding.works else "no"
    return f"  {finding.check:9} {word:6} {finding.ms:>6} ms  {'; '.join(parts)}"


@dataclass(frozen=True)
class SimulationOptions(Simulation):
    """The model to pretend."""

    seed: Annotated[int, typer.Option(help="The same seed and task id give the same behaviour.")] = 0
    ttft_ms: Annotated[float, typer.Option(min=0, help="Time to the first token.")] = 200.0
    tokens_per_second: Annotated[
        float, typer.Option(min=0, help="Speed of each task; 0: as fast as possible.")
    ] = 50.0
    tokens: Annotated[
        int, typer.Option(min=0, help="Length of an answer, if the payload does not limit it.")
    ] = 64
    jitter: Annotated[
        float, typer.Option(min=0, max=1, help="Share by which time, speed and length vary.")
    ] = 0.0
    failure_rate: Annotated[float, typer.Option(min=0, max=1, help="Share of tasks that fail.")] = 0.0
    failure_code: Annotated[str, typer.Option(help="The failure code they fail with.")] = "UPSTREAM_ERROR"
    accident: Annotated[
        Accident, typer.Option(help="How: before output, midway, never an end, or the process exits.")
    ] = Accident.ERROR


@app.command()
@expanded
def simulate(
    simulation: SimulationOptions,
    options: WorkerOptions,
    model: Annotated[
        list[str] | None, typer.Option(help="A model to offer; may be repeated. [default: any]")
    ] = None,
) -> None:
    """Pretend to be a model of a given speed; for load tests and for trying out failures. It also simulates audio and images.

    Example: fairlane worker simulate --model big --slots 32 --tokens-per-second 80 --failure-rate 0.05
    """
    if simulation.failure_code not in protocol.FAILURE_CODES:
        codes = ", ".join(protocol.FAILURE_CODES)
        _stop(f"{simulation.failure_code!r} is not a failure code; there are {codes}.")
    worker = Worker()
    worker.handler(models=model or [ANY_MODEL], task_types=SIMULATED)(SimulateAdapter(simulation))
    options.serve(worker)


@app.command("try")
def try_command(
    target: Target,
    payload: Annotated[
        Path, typer.Option(help="A JSON file with the task's payload; - reads standard input.")
    ],
    model: Annotated[
        str | None, typer.Option(help="The task's model. [default: the payload's, else the handler's first]")
    ] = None,
    type: Annotated[str, typer.Option(help="The task's type.")] = "openaiLike",
    stream: Annotated[bool, typer.Option(help="Whether the caller wants output as it comes.")] = True,
    timeout_ms: Annotated[
        int | None, typer.Option(min=1, help="The task's time. [default: no limit]")
    ] = None,
) -> None:
    """Run one task without a gateway: prints output as it comes, then usage and result, where it has them.

    Example: echo '{"messages": [{"role": "user", "content": "hello"}]}' | fairlane worker try app:worker
    --payload -
    """
    worker = _load(target)
    raw = _read_payload(payload)
    task = Task(
        task_id="try", type=type, model=model or _model_for(worker, raw), payload_bytes=raw, stream=stream
    )
    ended: list[str] = []
    in_line = False

    def show(item: Item | protocol.TaskProgress) -> None:
        """Print texts as they are, and everything else as a line of its own; usage and result at the end."""
        nonlocal in_line
        text = item.content if isinstance(item, Delta) and item == Delta(content=item.content) else item
        if isinstance(text, str):
            typer.echo(text, nl=False)
            sys.stdout.flush()
            in_line = True
        elif isinstance(item, Usage):
            ended.append(f"usage: {bytes(item.as_json()).decode()}")
        elif isinstance(item, Result):
            ended.append(f"result: {bytes(as_json(item.value)).decode()}")
        else:
            kind = "delta" if isinstance(item, Delta) else "progress"
            line = f"{len(item)} bytes" if isinstance(item, bytes) else f"{kind}: {_json(item)}"
            typer.echo(f"\n{line}" if in_line else line)
            in_line = False

    failure = ""
    try:
        asyncio.run(dry_run(worker, task, show, timeout_s=None if timeout_ms is None else timeout_ms / 1000))
    except TaskError as error:
        failure = f"failed: {error}"
    except TimeoutError:
        failure = f"failed: not done after {timeout_ms} ms"
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if in_line:
        typer.echo()
    if failure:
        typer.echo(failure, err=True)
        raise typer.Exit(FAILED_EXIT)
    for line in sorted(ended, reverse=True):  # usage before the result
        typer.echo(line)


def _json(item: object) -> str:
    return msgspec.json.encode(item).decode()


def _load(target: str) -> Worker:
    """The worker that MODULE:WORKER names. Ends the command with a sentence when there is none."""
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        _stop(f"{target!r} does not say where the worker is; write MODULE:WORKER, for example app:worker.")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part, None)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            _stop(f"There is no module {module_name!r} here; run this where it lies, or install it.")
        _stop(f"The module {module_name!r} needs {error.name!r}, which is not installed.")
    except Exception as error:
        # The edge to a foreign module: nothing is running yet, and its error is the answer.
        _stop(f"The module {module_name!r} cannot be imported: {error.__class__.__name__}: {error}")
    if found is None:
        _stop(f"The module {module_name!r} has no {attribute!r}.")
    if not isinstance(found, Worker):
        _stop(f"{target} is a {found.__class__.__name__}, not a Worker; create one with fairlane.Worker().")
    return found


def _read_payload(path: Path) -> bytes:
    raw = sys.stdin.buffer.read() if str(path) == "-" else _read(path, "payload")
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _stop(f"The payload {path} is not JSON: {error}.")
    return raw


def _model_for(worker: Worker, payload: bytes) -> str:
    value = msgspec.json.decode(payload)
    if isinstance(value, dict) and isinstance(value.get("model"), str):
        return str(value["model"])
    return next((model for model in worker.registry.models if model != ANY_MODEL), "default")


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        _stop(f"The {what} {path} cannot be read: {error.strerror}.")


def _stop(sentence: str) -> NoReturn:
    typer.echo(sentence, err=True)
    raise typer.Exit(USAGE_EXIT)
