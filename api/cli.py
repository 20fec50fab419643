"""`dujiang`: the command line and its boundary. Every group of verbs is a module that is imported when it is called."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import NoReturn

import click

from pipeline.errors import PipelineError

VERBS: Mapping[str, tuple[str, str, str]] = {
    "up": ("api.cli_machine", "up", "Start everything on this machine."),
    "down": ("api.cli_machine", "down", "Stop everything on this machine."),
    "ingest": ("api.cli_ingest", "ingest", "Take in files, folders, globs, zip archives and manifests."),
    "sources": ("api.cli_sources", "sources", "Feishu, Yuque, the web, folders: taken in again and again."),
    "search": ("api.cli_questions", "search", "Ranked chunks."),
    "ask": ("api.cli_questions", "ask", "A cited answer, or a refusal."),
    "mcp": ("api.cli_mcp", "mcp", "The tools for an agent: MCP on standard input and output."),
    "runs": ("api.cli_runs", "runs", "The balance of each run."),
    "batches": ("api.cli_batches", "batches", "What the numbers in Flower and in the logs stand for."),
    "failures": ("api.cli_failures", "failures", "Documents that could not be taken in, with reason and cure."),
    "collections": ("api.cli_collections", "collections", "List, create, show, set, delete collections."),
    "eval": ("api.cli_evaluate", "evaluate", "Where refusals should begin, from labelled questions."),
    "documents": ("api.cli_collections", "documents", "List, show, delete documents."),
    "deletions": ("api.cli_deletions", "deletions", "What deletions have left to do; done again after a restore."),
    "tenants": ("api.cli_steering", "tenants", "Shares of tenants in the workers."),
    "audit": ("api.cli_system", "audit", "What the stores really hold, with a digest."),
    "doctor": ("api.cli_system", "doctor", "Is everything there that is needed?"),
    "status": ("api.cli_system", "status", "Processes, queues and counts."),
    "logs": ("api.cli_machine", "logs", "What the processes on this machine say."),
    "config": ("api.cli_system", "config", "Every setting and where it came from."),
    "keys": ("api.cli_keys", "keys", "API keys."),
    "worker": ("api.cli_parts", "worker", "One worker alone, for deployments."),
    "beat": ("api.cli_parts", "beat", "The feeder and the sweep alone, for deployments."),
    "serve": ("api.cli_parts", "serve", "The HTTP server alone, for deployments."),
}
"""Verb → module, name, what it does: the overview is printed without importing any of them."""


class Verbs(click.Group):
    """Imports a verb's module when the verb is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, name, _ = VERBS[cmd_name]
        found: click.Command = getattr(import_module(module), name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, about) for name, (_, _, about) in VERBS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but a wrong verb is answered without importing all of them."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            ctx.fail(f"No such verb {args[0]!r}.{_near(args[0])}")
        return super().resolve_command(ctx, args)


def _near(word: str) -> str:
    from difflib import get_close_matches

    found = get_close_matches(word, VERBS, n=1)
    return f" Did you mean {found[0]!r}?" if found else ""


@click.command(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Example: dujiang ingest ./handbook -c handbook && dujiang ask 'Who approves travel?' -c handbook",
)
@click.version_option(package_name="dujiang")
def cli() -> None:
    """Documents in, cited answers out."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The command line's boundary: every failure becomes one line (or one JSON problem) and an exit code."""
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str], verbs: click.Command = cli) -> int:
    """Exit code of a command line: 0, 1 failed, 2 wrong usage, 3 some documents failed, 4 not allowed, 5 refused, 7 rate limited."""
    as_json = "--json" in arguments
    try:
        result: object = verbs.main(arguments, prog_name="dujiang", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.UsageError as error:
        return _usage(error, as_json)
    except click.ClickException as error:
        return _say(as_json, error.format_message(), "Correct the command.", "failed", 1)
    except PipelineError as error:
        return _deliberate(error, as_json)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception:
        return _unexpected(as_json)


def _usage(error: click.UsageError, as_json: bool) -> int:
    path = error.ctx.command_path if error.ctx else "dujiang"
    return _say(as_json, error.format_message(), f"Try '{path} --help'.", "usage", 2)


def _deliberate(error: PipelineError, as_json: bool) -> int:
    from api import problems

    if as_json:
        click.echo(json.dumps(problems.problem(error).json()), err=True)
    else:
        name = f"{error.document}: " if error.document and error.document not in error.detail else ""
        click.echo(f"{click.style('error', fg='red')}: {name}{error.detail}\n  {error.hint}", err=True)
    return problems.exit_code(error)


def _unexpected(as_json: bool) -> int:
    """A bug: one line for the user, the traceback for whoever repairs it."""
    import traceback

    text = traceback.format_exc()
    path = _keep(text)
    kind = text.strip().splitlines()[-1].split(":")[0]
    return _say(as_json, f"an unexpected failure ({kind})", f"Its traceback is in {path}; please report it.", "internal_error", 1)


def _keep(text: str) -> str:
    import tempfile
    from pathlib import Path

    from pipeline.settings import load

    try:
        folder = Path(load().settings.home) / "run" / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "command.log"
        with path.open("a", encoding="utf-8") as log:
            log.write(text + "\n")
    except (OSError, PipelineError):
        with tempfile.NamedTemporaryFile("w", prefix="dujiang-", suffix=".log", delete=False, encoding="utf-8") as log:
            log.write(text)
        return log.name
    return str(path)


def _say(as_json: bool, detail: str, hint: str, code: str, exit_code: int) -> int:
    if as_json:
        from api import problems

        status = 400 if exit_code == 2 else 500
        click.echo(json.dumps(problems.make(status, detail, code=code, hint=hint).json()), err=True)
    else:
        click.echo(f"{click.style('error', fg='red')}: {detail}\n  {hint}", err=True)
    return exit_code


if __name__ == "__main__":
    main()
