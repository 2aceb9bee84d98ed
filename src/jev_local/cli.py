"""`systemone`: ask a System One server from a shell. Arguments in, text and an exit code out."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from typing import TextIO

from jev_local import cli_explain, inputs
from jev_local.called import called
from jev_local.cli_arguments import parser
from jev_local.client import (
    BadReply,
    Client,
    ClientError,
    Refused,
    TimedOut,
    Unreachable,
    UnusableServer,
)
from jev_local.output_file import OutputFile, UnusableFile
from jev_local.received import Received
from jev_local.safe_text import clean, to_json
from jev_local.settings import api_key
from jev_local.terminal import headers_text, table, waiting

ANSWERED, REFUSED, USAGE, UNREACHABLE = 0, 1, 2, 3
INTERRUPTED = 130  # what shells say of a program that SIGINT ended

MOST_REASONS = 20


def main(argv: list[str] | None = None) -> int:
    """Run `systemone` with `argv` (default: the command line) and return its exit code."""
    if not _has_streams():
        return USAGE
    code = ANSWERED
    try:
        try:
            code = _run(sys.argv[1:] if argv is None else argv)
            sys.stdout.flush()
        except SystemExit as stop:  # argparse has printed help or a complaint
            sys.stdout.flush()
            return stop.code if isinstance(stop.code, int) else USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # `systemone | head`: the reader has what it wanted.
        _abandon(sys.stdout)
        return code
    except OSError as error:
        # Everything else that touches a file has its own handler, so this is standard output: a full disk, say.
        _abandon(sys.stdout)
        _say(f"cannot write the answers: {error.strerror or error}")
        return USAGE
    return code


def _has_streams() -> bool:
    """Whether there is somewhere to write answers to; if not, that is said before a server works for them."""
    # Python has None for a stream that was closed. Nobody reads complaints then, and there is nothing to be read.
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    has_stdout = sys.stdout is not None
    if not has_stdout:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if not has_stdout:
        _say("cannot write the answers: standard output is closed", "To have none, send them to /dev/null.")
    return has_stdout


def _run(argv: list[str]) -> int:
    # `ask` is what nearly everyone wants, so options alone mean it. The first word, where there is one, is a command.
    if not argv or (argv[0].startswith("-") and argv[0] not in ("-h", "--help", "--version")):
        argv = ["ask", *argv]
    arguments = parser().parse_args(argv)
    return {"ask": _ask, "explain": _explain, "doctor": _doctor}[arguments.command](arguments)


def _doctor(arguments: argparse.Namespace) -> int:
    # What starts servers comes along with it, and nobody else here needs that.
    from jev_local.doctor import examine, layout  # noqa: PLC0415

    wishes = examine.Wishes(
        url=arguments.url,
        backend_url=arguments.backend_url,
        key=api_key(os.environ) if arguments.key is None else arguments.key,
        timeout=arguments.timeout,
    )
    try:
        facts, step = examine.examine(wishes, os.environ, progress=sys.stderr)
    except UnusableServer as error:
        _say(str(error))
        return USAGE
    if arguments.format == "json":
        sys.stdout.write(to_json(layout.document(facts, step), sys.stdout.encoding))
    else:
        sys.stdout.write(layout.text(facts, step, sys.stdout.encoding))
    return ANSWERED if facts.can_decide else REFUSED


def _explain(arguments: argparse.Namespace) -> int:
    try:
        a, b = cli_explain.pair([arguments.a, arguments.b])
        client = _client(arguments)
    except (inputs.InputError, UnusableServer) as error:
        _say(str(error))
        return USAGE
    try:
        with client, waiting(f"Waiting for {client.url}", sys.stderr):
            found = client.explain(a.body, b.body)
    except ClientError as error:
        return _complain(error, with_headers=False)
    if arguments.format == "json":
        sys.stdout.write(to_json(found.document, sys.stdout.encoding))
    else:
        sys.stdout.write(cli_explain.text(found, sys.stdout.encoding))
    return ANSWERED


def _client(arguments: argparse.Namespace) -> Client:
    key = api_key(os.environ) if arguments.key is None else arguments.key
    return Client(arguments.url, key=key, timeout=arguments.timeout)


def _ask(arguments: argparse.Namespace) -> int:
    try:
        request = _request(arguments)
        # Whether the file can be written is found out before the server works for minutes, not after.
        output = None if arguments.output is None else OutputFile(arguments.output)
        client = _client(arguments)
    except (inputs.InputError, UnusableFile, UnusableServer) as error:
        _say(str(error))
        return USAGE
    try:
        with client, waiting(f"Waiting for {client.url}", sys.stderr):
            reply = client.ask(request.body)
    except ClientError as error:
        return _complain(error, with_headers=arguments.diagnostics)
    return _show(request, reply, arguments, output)


def _request(arguments: argparse.Namespace) -> inputs.Request:
    from_stdin = [
        option
        for option, reads in (
            ("--input -", arguments.input == inputs.STDIN),
            ("--state @-", arguments.state == f"@{inputs.STDIN}"),
            *(("--image -", file == inputs.STDIN) for file in arguments.image),
        )
        if reads
    ]
    if len(from_stdin) > 1:
        raise inputs.InputError(f"{' and '.join(from_stdin)} cannot both read standard input")
    request = inputs.read(arguments.input)
    if arguments.state is not None:
        request = inputs.with_state(request, inputs.state(arguments.state))
    return inputs.with_images(request, arguments.image) if arguments.image else request


def _show(request: inputs.Request, reply: Received, arguments: argparse.Namespace, output: OutputFile | None) -> int:
    code = ANSWERED
    if output is not None:
        try:
            output.write(to_json(reply.document))
        except OSError as error:
            # The answers cost time; they are still shown.
            _say(f"cannot write {output.path}: {error.strerror or error}")
            code = USAGE
    if arguments.format == "json":
        sys.stdout.write(to_json(reply.document, sys.stdout.encoding))
        if arguments.diagnostics:
            _tell(headers_text(reply.headers))
    else:
        sys.stdout.write(table(request.document, reply, sys.stdout, with_diagnostics=arguments.diagnostics))
    return code


def _complain(error: ClientError, *, with_headers: bool) -> int:
    match error:
        case Refused():
            _refusal(error)
            if with_headers:
                _tell(headers_text(error.headers))
            return REFUSED
        case BadReply():
            _say(error.message, "Is another program listening there? Name the server with --url.")
            return REFUSED
        case TimedOut():
            _say(
                error.message,
                f"Is it running ({called('up')}), or elsewhere (--url)? A slow model may need more --timeout.",
            )
        case UnusableServer():
            _say(error.message)
            return USAGE
        case Unreachable():
            _say(error.message, f"Start the server with {called('up')}, or name another one with --url.")
        case _:
            _say(error.message)
    return UNREACHABLE


def _refusal(error: Refused) -> None:
    hints: Mapping[int, str] = {
        401: "Set the server's key with --key or JEV_API_KEY.",
        403: "If it is the key that is missing: --key or JEV_API_KEY.",
        404: "--url is the server's root, without /v1.",
    }
    reasons = list(error.reasons[:MOST_REASONS])
    if len(error.reasons) > MOST_REASONS:
        reasons.append(f"... and {len(error.reasons) - MOST_REASONS} more")
    if error.status in hints:
        reasons.append(hints[error.status])
    if wait := error.headers.get("retry-after"):
        reasons.append(f"Worth another try after {wait} s." if wait.isdecimal() else f"Worth another try after {wait}.")
    _say(f"the server said no ({error.status}):", *reasons)


def _say(message: str, *more: str) -> None:
    _tell("\n  ".join(map(clean, (f"systemone: {message}", *more))) + "\n")


def _tell(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        # Closed, or on a full disk. The exit code still says what happened.
        _abandon(sys.stderr)


def _abandon(stream: TextIO) -> None:
    # The interpreter flushes it once more when it ends, and would complain about the pipe then.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
