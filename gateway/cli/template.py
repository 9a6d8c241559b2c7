"""`fairlane template render`: the request body that a template makes. Reads the configuration; asks no gateway."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fairlane.gateway.cli.client import Config, stop
from fairlane.gateway.prompts.errors import TemplateError, VariablesError
from fairlane.gateway.routing.plans import Plans
from fairlane.gateway.routing.routes import not_there
from fairlane.gateway.settings import Settings, load_settings

FAILED_EXIT = 1
_NONE = (
    "The configuration has no templates. Name the file that has some with --config, or write some under `templates`: "
    "docs/routing.md."
)

app = typer.Typer(
    name="template",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Render prompt templates of the configuration.",
)


@app.command()
def render(
    name: Annotated[str, typer.Argument(help="A template, or a route that has one.")],
    variables: Annotated[
        Path | None, typer.Option(help="A JSON file with a value for each variable; - reads standard input.")
    ] = None,
    value: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A variable that is a text: NAME=TEXT; may be repeated. Lists and objects: --variables.",
        ),
    ] = None,
    locale: Annotated[str, typer.Option(help="Such as en or zh-CN.")] = "",
    tier: Annotated[
        str | None, typer.Option(help="The tier for which a route is asked. [default: free, else the first]")
    ] = None,
    config: Config = None,
) -> None:
    """Print the body that a task of a template sends to its model, but for a route's bound on the output.

    Example: fairlane template render job_match --set resume="Ten years of Python" --locale en
    """
    settings = _settings(config)
    filled = _variables(variables, value or [])
    plans = Plans(settings)
    route = plans.routes.named.get(name)
    tiers = sorted(settings.tiers)
    tier = tier or ("free" if "free" in tiers else tiers[0])
    if tier not in tiers:
        stop(f"There is no tier {tier!r}; there are {', '.join(tiers)}.")
    template, image = plans.template(route, tier, name, filled, locale)
    if template is None:
        known = {*settings.templates, *settings.routes}
        stop(not_there(name, known) if known else _NONE)
    try:
        prompt = template.render(filled, locale)
    except VariablesError as error:
        told = f"The variables do not fit the template {template.name}: {error}. Give a text with --set NAME=TEXT, "
        typer.echo(f"fairlane: {told}lists and objects in a JSON file with --variables.", err=True)
        raise typer.Exit(FAILED_EXIT) from None
    except TemplateError as error:
        typer.echo(f"fairlane: The template {template.name} cannot be filled in: {error}", err=True)
        raise typer.Exit(FAILED_EXIT) from None
    body = prompt.body
    if route is not None:
        body = {"model": route.rule(tier, image=image).model, **body}
    typer.echo(json.dumps(body, indent=2, ensure_ascii=False))


def _settings(config: Path | None) -> Settings:
    settings, warnings = load_settings(config, {}, os.environ)
    for warning in warnings:
        typer.echo(f"fairlane: {warning}", err=True)
    return settings


def _variables(path: Path | None, values: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    where = "Standard input" if str(path) == "-" else path
    if path is not None:
        try:
            text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
            found = json.loads(text)
        except OSError as error:
            stop(f"{where} cannot be read: {error.strerror}.")
        except UnicodeDecodeError:
            stop(f"{where} is not UTF-8.")
        except ValueError as error:
            stop(f"{where} is not JSON: {error}.")
        if not isinstance(found, dict):
            stop(f"{where} must hold an object: a value for each variable.")
    for one in values:
        name, equals, text = one.partition("=")
        if not equals:
            stop(f"--set {one!r} has no value: write NAME=TEXT.")
        found[name] = text
    return found
