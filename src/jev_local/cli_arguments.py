"""The arguments of `systemone`, and what its help says."""

from __future__ import annotations

import argparse
import math

from jev_local import __version__
from jev_local.client import DEFAULT_TIMEOUT
from jev_local.settings import DEFAULT_API_URL, DEFAULT_BACKEND_URL, MAX_IMAGES

EXIT_CODES = """\
exit codes:
  0 answered   1 the server said no   2 bad usage   3 unreachable or too slow
"""

DESCRIPTION = """\
Ask typed questions about one state and get probabilities back.

A request holds a state (text, JSON, images) and questions of three types: noul (yes or no),
choice (one of up to 255 options) and score (a place on up to 10 levels).
"""

EXAMPLES = """\
examples:
  systemone                                    the packaged example, 12 questions
  systemone --state 'Please close my account.' the same questions about another text
  systemone --state @mail.txt                  ... about the text in a file
  systemone ask --input request.json           a request of your own
  systemone --input vision.json --image a.png  ... about an image
  jq . request.json | systemone --input -      ... from a pipe
  systemone --format json --output reply.json  the official JSON, printed and kept
  systemone explain first.json second.json     why the second did not reuse what the first had read
  systemone doctor                             what is here, what runs, and what to do next
  systemone ask --help                         every option
"""

ASK_EXAMPLES = """\
what --state takes:
  TEXT     a text as it is; @@TEXT for one that begins with an @
  @FILE    a file (@- for standard input): a JSON object or array as it stands, anything else as text

a request of your own, smallest size:
  {"state": "I was charged twice.",
   "questions": {"refund": {"type": "noul", "instructions": "Is money owed to the customer?"}}}

what --image takes:
  FILE     a PNG or JPEG of up to 4 MiB, shown before the state instead of the input's images

examples:
  systemone ask --input request.json --state @ticket.json
  systemone ask --input request.json --image photo.jpg
  systemone ask --diagnostics                  how the server came to its answers
  systemone ask --url http://10.0.0.5:8080 --key "$KEY" --timeout 600
"""

EXPLAIN = """\
Say why one request did not reuse what another had read, or would not.

Both are rendered and compared on the server: how many tokens agree, what stands where they part, and what would be
shared if it stood behind the rest. Where they agree, what became of the saved state is looked up. No model is asked.
"""

EXPLAIN_EXAMPLES = """\
A and B are requests as they are sent to /v1/systemone, /v1/chat/completions or /v1/completions; - is standard input.

examples:
  systemone explain monday.json tuesday.json
  systemone explain first.json second.json --format json
"""

DOCTOR = """\
Say what is installed, chosen, reachable and running, what it takes of the memory, how fast a decision is, and what to
do next. One decision is really made, where the API is ready. Nothing is fetched, started or changed; in a new checkout,
systemone_client.py makes .venv first.
"""

DOCTOR_EXAMPLES = """\
sections, and keys of the JSON document:
  installed   this package, llama-servers, models known by name
  chosen      what the next start would start, and who says so; trouble: why that cannot be told
  hosts       whether what is missing could be fetched
  backend     the inference server: its model, slots, context and build
  api         whether the API is ready, or why it is not
  memory      what the model, its context, slots and saved states take, against what there is
  speed       one decision, and how fast its prompt was read
  next        the one thing to do, with its command
sizes in JSON are bytes, times seconds; can_decide is true where the exit code is 0

examples:
  systemone doctor
  systemone doctor --url http://10.0.0.5:8080 --key "$KEY" --timeout 600
  systemone doctor --format json | jq .next.command
  systemone doctor > report.txt                for a report: no keys and no texts are in it; paths and addresses are

exit codes:
  0 a decision was made   1 none was: see `next`   2 bad usage
"""


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"has to be more than 0 seconds, got {text}")
    return value


_seconds.__name__ = "number of seconds"  # argparse names the type in its complaint


def parser() -> argparse.ArgumentParser:
    """Reads all of them; `command` says which command was given."""
    raw = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(
        prog="systemone",
        usage="systemone [ask | explain A B | doctor] [options]",
        description=DESCRIPTION,
        epilog=EXAMPLES + "\n" + EXIT_CODES,
        formatter_class=raw,
        allow_abbrev=False,
    )
    made.add_argument("--version", action="version", version=f"jev-local {__version__}")
    commands = made.add_subparsers(prog="systemone", title="commands", dest="command", metavar="COMMAND", required=True)
    _add_ask(
        commands.add_parser(
            "ask",
            help="answer the questions of a request (the default)",
            description=DESCRIPTION,
            epilog=ASK_EXAMPLES + "\n" + EXIT_CODES,
            formatter_class=raw,
            allow_abbrev=False,
        )
    )
    _add_explain(
        commands.add_parser(
            "explain",
            help="say why one request did not reuse what another had read",
            description=EXPLAIN,
            epilog=EXPLAIN_EXAMPLES + "\n" + EXIT_CODES,
            formatter_class=raw,
            allow_abbrev=False,
        )
    )
    _add_doctor(
        commands.add_parser(
            "doctor",
            help="say what is here, what runs, and what to do next",
            description=DOCTOR,
            epilog=DOCTOR_EXAMPLES,
            formatter_class=raw,
            allow_abbrev=False,
        )
    )
    return made


def _add_ask(ask: argparse.ArgumentParser) -> None:
    add = ask.add_argument
    add("--input", metavar="FILE|-", help="the request, sent as it is (default: the packaged example)")
    add("--state", metavar="TEXT|@FILE", help="ask about this instead of the input's state; see below")
    add(
        "--image",
        action="append",
        default=[],
        metavar="FILE|-",
        help=f"show this PNG or JPEG with every question; up to {MAX_IMAGES} times, for a model that sees images",
    )
    add("--format", choices=("table", "json"), default="table", help="what to print (default: %(default)s)")
    add("--output", metavar="FILE", help="also write the official JSON to FILE, whole or not at all")
    _add_server(ask)
    add("--diagnostics", action="store_true", help="show the X-Jev-Local-* headers (with json: on standard error)")


def _add_explain(explain: argparse.ArgumentParser) -> None:
    explain.add_argument("a", metavar="A", help="the request that was asked first")
    explain.add_argument("b", metavar="B", help="the one that should have reused what it had read")
    explain.add_argument(
        "--format", choices=("text", "json"), default="text", help="what to print (default: %(default)s)"
    )
    _add_server(explain)


def _add_doctor(doctor: argparse.ArgumentParser) -> None:
    add = doctor.add_argument
    add(
        "--backend-url",
        default=DEFAULT_BACKEND_URL,
        metavar="URL",
        help="root of the inference server (default: %(default)s)",
    )
    add("--format", choices=("table", "json"), default="table", help="what to print (default: %(default)s)")
    _add_server(doctor)


def _add_server(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--url", default=DEFAULT_API_URL, help="root of the server (default: %(default)s)")
    add("--key", help="API key (default: JEV_API_KEY, else local-dev; an empty one is not sent)")
    add(
        "--timeout",
        type=_seconds,
        default=DEFAULT_TIMEOUT,
        metavar="SECONDS",
        help="longest wait for the answers (default: %(default)g)",
    )
