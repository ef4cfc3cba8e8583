"""`edgewright serve`: a robot policy over the network."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgewright.cli._load import failed_verdict
from edgewright.cli._parser import positive_int
from edgewright.errors import MissingExtraError

NAME = "serve"
HELP = "Serve a policy bundle over a websocket that openpi's clients talk to."
_PACKAGES = frozenset({"websockets", "msgpack"})
_MIB = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundle", metavar="BUNDLE", help="the policy's bundle")
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen (default: 127.0.0.1, this machine only)"
    )
    parser.add_argument(
        "--port", type=_port, default=8000, metavar="N", help="the port, 0 for a free one (default: 8000)"
    )
    access = parser.add_mutually_exclusive_group()
    access.add_argument("--token-file", metavar="FILE", help="a text file with the token that clients must send")
    access.add_argument(
        "--no-token",
        action="store_true",
        help="let everybody who reaches an address beyond this machine drive the robot",
    )
    parser.add_argument(
        "--max-message", type=positive_int, default=32, metavar="MIB", help="largest message (default: 32)"
    )
    parser.add_argument(
        "--max-images", type=positive_int, default=8, metavar="N", help="images in an observation (default: 8)"
    )
    parser.add_argument(
        "--deadline-ms",
        type=positive_int,
        default=30_000,
        metavar="MS",
        help="longest time from observation to answer (default: 30000)",
    )
    parser.add_argument("--queue", type=_count, default=4, metavar="N", help="observations that may wait (default: 4)")
    parser.add_argument("--connections", type=positive_int, default=8, metavar="N", help="clients at once (default: 8)")
    parser.add_argument(
        "--threads", type=positive_int, metavar="N", help="cores to use (default: one per physical core)"
    )
    parser.add_argument("--no-warm-up", action="store_true", help="open the port without trial runs")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM, both of which end it well."""
    from edgewright.bundle import read_manifest

    try:
        from edgewright.serve.bundles import ServedBundle
        from edgewright.serve.log import Log
        from edgewright.serve.server import PolicyServer
        from edgewright.serve.settings import Settings, read_token
        from edgewright.serve.wire import Limits
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _PACKAGES:
            raise
        raise MissingExtraError(
            f"Serving needs the package {error.name}, which is not installed: pip install 'edgewright[serve]'."
        ) from None
    settings = Settings(
        host=args.host,
        port=args.port,
        token=None if args.token_file is None else read_token(args.token_file),
        allow_open=args.no_token,
        deadline_ms=args.deadline_ms,
        queue=args.queue,
        connections=args.connections,
        limits=Limits(message_bytes=args.max_message * _MIB, images=args.max_images),
    )  # before minutes of loading
    served = ServedBundle(args.bundle, threads=args.threads)
    log = Log(quiet=args.quiet)
    if warning := failed_verdict(read_manifest(Path(args.bundle))):
        log.event("warning", message=warning)
    server = PolicyServer(served, settings, log=log)
    if not args.no_warm_up:
        server.warm_up(served.example())
    server.run()
    return 0


def _port(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else -1
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 99999")
    return int(text)
