"""`edgewright run`: one prompt, one answer; one observation, one chunk of actions."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewright.cli._kinds import holds_policy, refuse_foreign
from edgewright.cli._load import load, warn_respelled
from edgewright.cli._output import note, print_json
from edgewright.cli._parser import token_ids
from edgewright.cli._run_policy import POLICY_FLAGS, add_policy_arguments, run_policy
from edgewright.cli._sampling import add_generation, sampling_of
from edgewright.errors import GenerationError, UsageError

if TYPE_CHECKING:
    from edgewright.runtime.generation import Generation
    from edgewright.runtime.llm import LLM

NAME = "run"
HELP = "Answer one prompt with a bundle, as a stream on stdout; or give a policy's actions for one observation."
#: The flags that have no meaning for a robot policy.
LLM_FLAGS = (
    "--prompt-ids", "--chat", "--raw", "--system", "--max-tokens", "--temperature", "--top-k", "--top-p", "--min-p",
    "--repetition-penalty", "--presence-penalty", "--frequency-penalty", "--stop", "--ids", "--stats",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", help="the prompt; '-' or nothing reads standard input")
    prompt.add_argument("--prompt-file", metavar="FILE", help="a text file with the prompt; '-' is standard input")
    prompt.add_argument("--prompt-ids", type=token_ids, metavar="IDS", help="token ids instead of text: 1,2,3")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--chat",
        action="store_true",
        default=None,
        help="put the prompt into the chat template (default where the bundle has one)",
    )
    mode.add_argument("--raw", dest="chat", action="store_false", help="continue the prompt as it stands")
    add_generation(parser, max_tokens=256)
    add_policy_arguments(parser)
    parser.add_argument("--ids", action="store_true", help="print token ids instead of text")
    parser.add_argument("--json", action="store_true", help="print one JSON object: the result and its timings")
    parser.add_argument("--stats", action="store_true", help="print counts and speeds on stderr")


def run(args: argparse.Namespace) -> int:
    """Generate, or infer."""
    policy = holds_policy(args.bundle)
    refuse_foreign(args, LLM_FLAGS if policy else POLICY_FLAGS, policy=policy)
    if policy:
        given = args.prompt is not None or args.prompt_file is not None
        return run_policy(args, _prompt(args) if given else None)
    return _answer(args)


def _answer(args: argparse.Namespace) -> int:
    if args.prompt_ids and (args.system is not None or args.chat):
        raise UsageError("--prompt-ids are fed as they are: --system and --chat have no meaning beside them.")
    text = None if args.prompt_ids else _prompt(args)

    sampling = sampling_of(args)
    start = time.perf_counter()
    llm = load(args)
    load_s = time.perf_counter() - start
    ids = args.prompt_ids or _encode(args, llm, text or "")
    start = time.perf_counter()
    generation = llm.generate(ids, max_tokens=args.max_tokens, sampling=sampling, stop=args.stop)
    clock = _Clock(generation, start, load_s)
    pieces = []
    for piece in clock.pieces():
        pieces.append(piece)
        if not args.json and not args.ids:
            sys.stdout.write(piece)
            sys.stdout.flush()
    if args.json:
        print_json({"text": "".join(pieces), "tokens": generation.tokens, **clock.to_json()})
    else:
        print(" ".join(map(str, generation.tokens)) if args.ids else "", flush=True)
    if args.stats:
        note(clock.line())
    warn_respelled(llm, generation.respelled, quiet=args.quiet)
    return 0


def _prompt(args: argparse.Namespace) -> str:
    """Return the prompt's text; the newline that ends a piped or stored text is not part of it."""
    if args.prompt_file not in (None, "-"):
        path = Path(args.prompt_file)
        try:
            return _text(path.read_bytes(), str(path))
        except OSError as error:
            raise UsageError(f"The prompt file {path} can't be read ({error.strerror or error}).") from None
    if args.prompt not in (None, "-"):
        return str(args.prompt)
    if args.prompt is None and args.prompt_file is None and sys.stdin.isatty():
        raise UsageError("There is no prompt: give --prompt TEXT, --prompt-file FILE, or pipe a text in.")
    return _text(sys.stdin.buffer.read(), "standard input")


def _text(data: bytes, source: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"The prompt from {source} is not UTF-8 text at byte {error.start}.") from None
    return text.removesuffix("\n").removesuffix("\r")


def _encode(args: argparse.Namespace, llm: LLM, text: str) -> Sequence[int]:
    if not text:
        raise GenerationError("The prompt is empty: give a text of at least one character.")
    chat = llm.has_chat_template if args.chat is None else args.chat
    if not chat:
        if args.system is not None:
            raise UsageError(
                "--system needs a chat, and this prompt is continued as it stands: put it into the prompt."
            )
        return llm.tokenizer.encode(text)
    messages = [{"role": "system", "content": args.system}] if args.system is not None else []
    return llm.encode_chat([*messages, {"role": "user", "content": text}])


class _Clock:
    """Measures a generation as it runs: the first piece of text ends the prefill, the rest is decode."""

    def __init__(self, generation: Generation, start: float, load_s: float) -> None:
        self._generation = generation
        self._start = start
        self._load_s = load_s
        self._first_s = self._total_s = 0.0
        self._first_tokens = 0

    def pieces(self) -> Iterator[str]:
        """Pass the generation's pieces on."""
        for piece in self._generation:
            if not self._first_tokens:
                self._first_s = time.perf_counter() - self._start
                self._first_tokens = len(self._generation.tokens)
            yield piece
        self._total_s = time.perf_counter() - self._start
        if not self._first_tokens:  # not one visible character
            self._first_s, self._first_tokens = self._total_s, len(self._generation.tokens)

    def to_json(self) -> dict[str, Any]:
        """Return counts and timings."""
        g = self._generation
        decoded, decode_s = len(g.tokens) - self._first_tokens, self._total_s - self._first_s
        return {
            "finish_reason": g.finish_reason,
            "prompt_tokens": len(g.prompt_ids),
            "generated_tokens": len(g.tokens),
            **({"respelled_tokens": sum(g.respelled.values())} if g.session.vocabulary is not None else {}),
            "timings": {
                "load_ms": round(self._load_s * 1000, 3),
                "first_text_ms": round(self._first_s * 1000, 3),
                "total_ms": round(self._total_s * 1000, 3),
                "decode_tokens_per_s": round(decoded / decode_s, 3) if decoded and decode_s > 0 else None,
            },
        }

    def line(self) -> str:
        """Return counts and timings in one line."""
        data = self.to_json()
        times = data["timings"]
        speed = times["decode_tokens_per_s"]
        return (
            f"stats: load {times['load_ms'] / 1000:.2f} s, {data['prompt_tokens']} prompt tokens, first text after "
            f"{times['first_text_ms']:.0f} ms, {data['generated_tokens']} tokens generated"
            f"{f' at {speed:.1f} tok/s' if speed else ''}, finish {data['finish_reason']}"
        )
