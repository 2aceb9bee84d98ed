"""What a prompt cache saves: one policy read again and again with other questions, on any server with OpenAI's API.

    python3 -m tools.benchmark_prompt_cache --url URL --model NAME [--launch "COMMAND"]

measured, in this order:
  cold start      with --launch: model load, first request, memory; the server is started --starts times
  sequential      one request at a time: a policy nobody has sent before, then other questions about it
  concurrency     so many clients at once and the same requests in turn, with a common prefix and one a client
  mixed prefixes  A, other policies, and back to A: a hit or a miss, and after how many others A is gone
  order           a date and a customer that change in every request, behind the policy and before it

Every round sends policies that nobody has sent before, so a server may have been used already. It should serve nobody
else meanwhile. Answers are checked for the policy's sentence and a reason, so that a fast wrong answer shows. Cached
tokens are what the server reports, and `not reported` where it does not. The memory of a server on this machine is
read while it works.

results.jsonl, report.md and report.html (one file with charts, nothing to load from elsewhere) go to --output.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from jev_local.launch.signals import Interruptions
from tools.prompt_cache_options import checked, parser
from tools.prompt_cache_page import page
from tools.prompt_cache_report import TITLE, parts
from tools.prompt_cache_results import Results, environment, written
from tools.prompt_cache_run import run
from tools.prompt_cache_server import NoServer, without_secrets
from tools.prompt_cache_tables import markdown

NOTHING, INTERRUPTED = 1, 130


def save(results: Results, output: Path) -> None:
    from tools.prompt_cache_charts import charts  # noqa: PLC0415  # matplotlib is an extra, and --help needs none

    with (output / "results.jsonl").open("w", encoding="utf-8") as lines:
        lines.writelines(line + "\n" for line in written(results))
    (output / "report.md").write_text(markdown(TITLE, parts(results)), encoding="utf-8")
    (output / "report.html").write_text(page(TITLE, parts(results), charts(results)), encoding="utf-8")


def main() -> int:
    command = parser(__doc__)
    parsed = command.parse_args()
    material = checked(command, parsed)
    shown = {"url": parsed.url, "model": parsed.model, "rounds": parsed.rounds, "max_tokens": parsed.max_tokens}
    shown |= {"concurrency": list(parsed.concurrency), "prefixes": list(parsed.prefixes)}
    if parsed.launch is not None:
        shown |= {"launch": without_secrets(parsed.launch, parsed.key), "starts": parsed.starts}
    results, code = Results(environment(shown, material) | {"server": {}}), 0
    console = Console(stderr=True, highlight=False)
    try:
        with Interruptions():
            run(parsed, material, results, console)
    except NoServer as reason:
        results.note, code = str(reason), NOTHING
    except KeyboardInterrupt:
        results.note, code = "Interrupted: only what was measured until then.", INTERRUPTED
    if results.note:
        print(results.note, file=sys.stderr)
    if not results.measured:
        return code or NOTHING
    try:
        save(results, parsed.output)
    except OSError as error:
        print(f"{parsed.output}: {error.strerror}", file=sys.stderr)
        return NOTHING
    Console(highlight=False, soft_wrap=True).print(markdown(TITLE, parts(results)), markup=False)
    print(f"everything: {parsed.output / 'report.html'}, and report.md and results.jsonl beside it")
    return code


if __name__ == "__main__":
    sys.exit(main())
