"""What makes a file a CDI spec to a runtime, beyond its types. Pure.

`check` judges a file as a runtime would that knows all versions, `problems` one already parsed.
Some rules are stricter than one library or another: what passes here is accepted by all of them.
`doubts` is what no runtime refuses and we never write: it judges our own files, and no stranger's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from pydantic import ValidationError

from fleet.node.cdi import parser, versions
from fleet.node.cdi.model import DeviceNode, Edits, Hook, IntelRdt, Mount, Spec
from fleet.node.cdi.names import (
    FILE_LENGTH_MAX,
    NAME_LENGTH_MAX,
    SCANNED,
    device_problems,
    kind_problems,
)

NODE_TYPES = ("", "b", "c", "u", "p")
HOOKS = (
    "prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop",
)  # fmt: skip
FILE_MODE_MAX = 0o7777
BIND = ("bind", "rbind")
PATH_BYTES_MAX = 4095
TEXT_BYTES_MAX = 128 * 1024 - 1
"""Longest text of an environment variable that the kernel passes to a program."""
SHOWN_MAX = 60


def check(text: str | bytes, filename: str) -> list[str]:
    """Everything wrong with a file of this name and content; empty when a runtime accepts it."""
    return parsed(text, filename)[1]


def parsed(text: str | bytes, filename: str) -> tuple[Spec | None, list[str]]:
    """The spec in a file, None if there is none, and everything wrong with it."""
    if not filename.endswith(SCANNED):
        return None, [f"{filename}: runtimes read only names ending in {' or '.join(SCANNED)}"]
    try:
        return judged(parser.tree(text, filename))
    except parser.Malformed as error:
        return None, [str(error)]


def judged(tree: Mapping[str, object]) -> tuple[Spec | None, list[str]]:
    """The spec in an object read from a file, None if there is none, and what is wrong with it."""
    try:
        found = parser.spec(tree)
    except RecursionError:
        return None, ["spec: nested too deeply"]
    except ValidationError as error:
        return None, [
            f"{'.'.join(str(part) for part in wrong['loc']) or 'spec'}: {wrong['msg']}"
            for wrong in error.errors(include_url=False, include_context=False)
        ]
    return found, problems(found)


def problems(spec: Spec) -> list[str]:
    """Everything wrong with a spec whose types are right."""
    return list(_spec(spec))


def doubts(spec: Spec) -> list[str]:
    """Why we do not write a spec that a runtime would take (B69)."""
    too_long = (device.name for device in spec.devices if len(device.name) > NAME_LENGTH_MAX)
    return [
        *_unclear(spec.model_dump(exclude_none=True), "spec"),
        *_collisions(spec),
        *(f"device name {name[:40]!r}... has {len(name)} characters" for name in too_long),
    ]


def _unclear(part: object, place: str) -> Iterator[str]:
    """Texts anywhere in a spec that are no plain line, or longer than the kernel takes them.

    Every text comes from somewhere else (a driver, a file system, settings); all of them go through
    here, so that none has to be thought of by name.
    """
    if isinstance(part, Mapping):
        for name, one in part.items():
            yield from _unclear(name, f"{place}: a name")
            yield from _unclear(one, f"{place}.{name}")
    elif isinstance(part, list | tuple):
        for number, one in enumerate(part):
            yield from _unclear(one, f"{place}[{number}]")
    elif isinstance(part, str):
        if not part.isprintable():
            yield f"{place} has a control character or line break: {part[:SHOWN_MAX]!r}"
        most = PATH_BYTES_MAX if part.startswith("/") else TEXT_BYTES_MAX
        length = len(part.encode(errors="surrogatepass"))
        if length > most:
            yield f"{place} is longer than {most} bytes: {part[:SHOWN_MAX]!r}..."
        names = part.split("/") if part.startswith("/") and length > FILE_LENGTH_MAX else []
        if any(len(one.encode(errors="surrogatepass")) > FILE_LENGTH_MAX for one in names):
            yield f"{place} has a name longer than {FILE_LENGTH_MAX} bytes: {part[:SHOWN_MAX]!r}..."


def _collisions(spec: Spec) -> Iterator[str]:
    """Places in a container that two devices of the spec fill with different things.

    A container may get all of them; what it has at that place then is the order's choice. Nodes
    that several devices need, each the same, are no collision.
    """
    taken: dict[str, tuple[str, object]] = {}
    for device in spec.devices:
        edits = device.container_edits
        nodes = [(node.path, node) for node in edits.device_nodes or ()]
        mounts = [(mount.container_path, mount) for mount in edits.mounts or ()]
        for place, what in (*nodes, *mounts):
            owner, other = taken.setdefault(place, (device.name, what))
            if other != what:
                yield f"{owner} and {device.name} both put something at {place} in the container"


def _spec(spec: Spec) -> Iterator[str]:
    least = versions.minimum(spec)
    if versions.rank(spec.cdi_version) < 0:
        yield f"cdiVersion {spec.cdi_version!r} is unknown"
    elif versions.rank(spec.cdi_version) < versions.rank(least):
        yield f"cdiVersion {spec.cdi_version} is too low: the content needs {least}"
    yield from kind_problems(spec.kind)
    if not spec.devices:
        yield "no devices"
    for name in _repeated(device.name for device in spec.devices):
        yield f"device {name!r} is defined twice"
    if spec.container_edits is not None:
        yield from _edits(spec.container_edits)
    for device in spec.devices:
        yield from device_problems(device.name)
        if device.container_edits.empty:
            yield f"device {device.name!r} changes nothing"
        for problem in _edits(device.container_edits):
            yield f"device {device.name!r}: {problem}"


def _edits(edits: Edits) -> Iterator[str]:
    yield from _variables(edits.env or ())
    for node in edits.device_nodes or ():
        yield from _node(node)
    for mount in edits.mounts or ():
        yield from _mount(mount)
    for hook in edits.hooks or ():
        yield from _hook(hook)
    interfaces = edits.net_devices or ()
    if any(not (found.host_interface_name and found.name) for found in interfaces):
        yield "a network device needs the host's and the container's name of the interface"
    for name in _repeated(found.host_interface_name for found in interfaces):
        yield f"host interface {name!r} is given twice"
    for name in _repeated(found.name for found in interfaces):
        yield f"interface {name!r} is made twice"
    if edits.intel_rdt is not None:
        yield from _rdt(edits.intel_rdt)


def _variables(variables: Iterable[str]) -> Iterator[str]:
    for variable in variables:
        if variable.find("=") < 1:
            yield f"environment {variable!r} is not NAME=value"


def _node(node: DeviceNode) -> Iterator[str]:
    if not node.path:
        yield "a device node needs a path"
    if (node.type or "") not in NODE_TYPES:
        yield f"device node {node.path}: type {node.type!r} is unknown"
    if set(node.permissions or "") - set("rwm"):
        yield f"device node {node.path}: permissions {node.permissions!r} are not of 'rwm'"
    if (node.file_mode or 0) > FILE_MODE_MAX:
        yield f"device node {node.path}: fileMode {node.file_mode} is no file mode"


def _mount(mount: Mount) -> Iterator[str]:
    if not mount.host_path or not mount.container_path:
        yield "a mount needs hostPath and containerPath"
    bound = any(option in BIND for option in mount.options or ())
    if mount.type in (None, "", *BIND) and not bound:
        yield f"mount {mount.container_path}: options need 'bind' or 'rbind'"


def _hook(hook: Hook) -> Iterator[str]:
    if hook.hook_name not in HOOKS:
        yield f"hook {hook.hook_name!r} is unknown"
    if not hook.path.startswith("/"):
        yield f"hook path {hook.path!r} is not absolute"
    if hook.timeout is not None and hook.timeout <= 0:
        yield f"hook {hook.path}: timeout {hook.timeout} is not above 0"
    yield from _variables(hook.env or ())


def _rdt(rdt: IntelRdt) -> Iterator[str]:
    if rdt.enable_cmt is not None or rdt.enable_mbm is not None:
        yield "intelRdt.enableCMT and enableMBM are gone since 1.1.0: current runtimes refuse them"


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
