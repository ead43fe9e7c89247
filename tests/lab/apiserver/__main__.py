"""As a process: `python -m tests.lab.apiserver --port-file F --kubeconfig K [--token T]`.

For tests that kill the processes which talk to it. Ends at SIGTERM or when its standard input ends.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import threading
from pathlib import Path

from tests.lab.apiserver.engine import Engine
from tests.lab.apiserver.server import StandIn


def main(arguments: list[str] | None = None) -> int:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(prog="tests.lab.apiserver")
    parser.add_argument("--port-file", type=Path, required=True)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--token", default="")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input ends")
    chosen = parser.parse_args(arguments)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    if chosen.until_eof:
        threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    # Another server is another cluster; the same token after a restart is the same one.
    engine = Engine(seed=chosen.token or secrets.token_hex(8))
    with StandIn(engine, token=chosen.token) as standin:
        standin.kubeconfig(chosen.kubeconfig)
        whole = chosen.port_file.with_name(chosen.port_file.name + ".tmp")
        whole.write_text(f"{standin.port}\n")
        whole.replace(chosen.port_file)
        ended.wait()
    return 0


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


if __name__ == "__main__":
    sys.exit(main())
