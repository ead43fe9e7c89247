"""Makes the modules of `node_plugin.proto` from their .proto files: ``python -m tests.protocols``.

The generated modules are committed, so that nothing but the protobuf run time is needed to serve; a
test compares them with what this script makes. Two decisions:

1. The compiler is given the root of the tree, so that modules import each other as
   ``node_plugin.proto.x_pb2`` and file names in protobuf's process-wide pool are unique.
2. The service modules come without types; their stubs are made here from the descriptors, for
   `grpc.aio` only, which is all this package serves and speaks. The compiler's own stubs leave one
   type open; it is closed here, so that no checker needs an exception for generated files.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)

PACKAGE = "node_plugin/proto"
ROOT = Path(__file__).parents[1]
TIMEOUT_S = 120.0
"""Time, s, one run of the compiler may take."""

_OPEN_TYPE = ", _Mapping]"
_CLOSED_TYPE = ", _Mapping[str, object]]"


def protocols(root: Path) -> tuple[str, ...]:
    """The .proto files under `root`, as the compiler is told of them."""
    return tuple(sorted(f"{PACKAGE}/{path.name}" for path in (root / PACKAGE).glob("*.proto")))


def generate(destination: Path, *, root: Path = ROOT) -> tuple[Path, ...]:
    """Write all modules of the protocols in `root` under `destination`; returns their paths.

    Raises `subprocess.CalledProcessError` when a .proto file is wrong.
    """
    names = protocols(root)
    with tempfile.TemporaryDirectory() as scratch:
        described = Path(scratch) / "descriptors"
        outputs = [f"--{kind}_out={destination}" for kind in ("python", "pyi", "grpc_python")] + [
            f"--descriptor_set_out={described}"
        ]
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", *outputs, *names],
            check=True,
            timeout=TIMEOUT_S,
        )
        found = FileDescriptorSet.FromString(described.read_bytes())
    written = []
    for file in found.file:
        stem = destination / file.name.removesuffix(".proto")
        stub = stem.with_name(f"{stem.name}_pb2_grpc.pyi")
        stub.write_text(service_stub(file))
        messages = stem.with_name(f"{stem.name}_pb2.pyi")
        messages.write_text(messages.read_text().replace(_OPEN_TYPE, _CLOSED_TYPE))
        written += [
            stem.with_name(f"{stem.name}_pb2.py"),
            messages,
            stem.with_name(f"{stem.name}_pb2_grpc.py"),
            stub,
        ]
    return tuple(written)


def service_stub(file: FileDescriptorProto) -> str:
    """Types of one service module, as the text of its ``.pyi``."""
    module = file.name.removesuffix(".proto").replace("/", ".") + "_pb2"
    package, _, alias = module.rpartition(".")
    lines = [
        "from collections.abc import AsyncIterator, Awaitable",
        "",
        "import grpc.aio",
        "",
        f"from {package} import {alias}",
    ]
    for service in file.service:
        lines += _client(service, alias)
        lines += _server(service, alias)
    return "\n".join(lines) + "\n"


def _client(service: ServiceDescriptorProto, alias: str) -> Iterator[str]:
    yield ""
    yield f"class {service.name}Stub:"
    yield "    def __init__(self, channel: grpc.aio.Channel) -> None: ..."
    for method in service.method:
        kind = "UnaryStream" if method.server_streaming else "UnaryUnary"
        yield f"    {method.name}: grpc.aio.{kind}MultiCallable[{_types(method, alias)}]"


def _server(service: ServiceDescriptorProto, alias: str) -> Iterator[str]:
    yield ""
    yield f"class {service.name}Servicer:"
    for method in service.method:
        answer = f"{alias}.{_last(method.output_type)}"
        shape = "AsyncIterator" if method.server_streaming else "Awaitable"
        yield f"    def {method.name}("
        yield "        self,"
        yield f"        request: {alias}.{_last(method.input_type)},"
        yield f"        context: grpc.aio.ServicerContext[{_types(method, alias)}],"
        yield "        /,"
        yield f"    ) -> {shape}[{answer}]: ..."
    yield ""
    yield f"def add_{service.name}Servicer_to_server("
    yield f"    servicer: {service.name}Servicer, server: grpc.aio.Server"
    yield ") -> None: ..."


def _types(method: MethodDescriptorProto, alias: str) -> str:
    return f"{alias}.{_last(method.input_type)}, {alias}.{_last(method.output_type)}"


def _last(name: str) -> str:
    return name.rpartition(".")[2]


if __name__ == "__main__":
    generate(ROOT)
