"""Layers and an OCI archive, byte for byte the same from the same files."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from deploy.image.recipe import Configuration

Compress = Callable[[Path, Path], None]
"""From a tar archive to a gzip file."""
PERMISSIONS = 0o1777
"""What is kept of a mode: nobody becomes another user by a file of this image."""
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: a gzip file and what it holds."""

    path: Path
    digest: str
    """Of the gzip file, `sha256:...`."""
    content: str
    """Of the tar archive in it, `sha256:...`."""
    size: int
    """B, of the gzip file."""
    made_by: str


def digest_of(path: Path) -> str:
    """`sha256:...` of a file."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def write_layer(root: Path, names: Iterable[str], target: BinaryIO, moment: int) -> None:
    """A tar archive of these paths below `root`, sorted; all are of `moment`, s since 1970."""
    with tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT) as layer:
        for name in sorted(names):
            path = root / name
            found = path.lstat()
            entry = tarfile.TarInfo(name)
            entry.mtime = moment
            entry.mode = found.st_mode & PERMISSIONS
            entry.uid, entry.gid = found.st_uid, found.st_gid
            if stat.S_ISLNK(found.st_mode):
                entry.type, entry.linkname = tarfile.SYMTYPE, str(path.readlink())
                layer.addfile(entry)
            elif stat.S_ISDIR(found.st_mode):
                entry.type = tarfile.DIRTYPE
                layer.addfile(entry)
            elif stat.S_ISREG(found.st_mode):
                entry.size = found.st_size
                with path.open("rb") as file:
                    layer.addfile(entry, file)


def compressed(layer: Path, cache: Path, compress: Compress, made_by: str) -> Layer:
    """The layer as gzip, which is kept in `cache` by what it holds."""
    content = digest_of(layer)
    kept = cache / f"{content.partition(':')[2]}.gz"
    if not kept.is_file():
        fresh = kept.with_suffix(f".{os.getpid()}")
        compress(layer, fresh)
        fresh.rename(kept)
    kept.touch()
    return Layer(kept, digest_of(kept), content, kept.stat().st_size, made_by)


def write(
    target: Path,
    layers: list[Layer],
    configuration: Configuration,
    *,
    name: str,
    architecture: str,
    made: str,
    moment: int,
) -> str:
    """The archive; the digest of its manifest. `made` is RFC 3339, `moment` the same in seconds."""
    config = {
        "architecture": architecture,
        "os": "linux",
        "created": made,
        "config": {
            "User": configuration.user,
            "Env": [f"{key}={value}" for key, value in configuration.environment.items()],
            "Cmd": configuration.command,
            "WorkingDir": configuration.directory,
            "Labels": configuration.labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.content for layer in layers]},
        "history": [{"created": made, "created_by": layer.made_by} for layer in layers],
    }
    described_config, config_bytes = _described(CONFIG, config)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": described_config,
        "layers": [
            {"mediaType": LAYER, "digest": layer.digest, "size": layer.size} for layer in layers
        ],
    }
    described_manifest, manifest_bytes = _described(MANIFEST, manifest)
    full = full_name(name)
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [
            {
                **described_manifest,
                "platform": {"architecture": architecture, "os": "linux"},
                "annotations": {
                    "io.containerd.image.name": full,
                    "org.opencontainers.image.ref.name": full.rpartition(":")[2],
                },
            }
        ],
    }
    blobs = {
        _blob(described_config["digest"]): config_bytes,
        _blob(described_manifest["digest"]): manifest_bytes,
    }
    texts = {
        **blobs,
        "index.json": _bytes(index),
        "oci-layout": _bytes({"imageLayoutVersion": "1.0.0"}),
    }
    files = {_blob(layer.digest): layer.path for layer in layers}
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    with tarfile.open(fresh, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(texts.keys() | files.keys()):
            entry = tarfile.TarInfo(path)
            entry.mtime = moment
            if path in texts:
                entry.size = len(texts[path])
                archive.addfile(entry, io.BytesIO(texts[path]))
            else:
                entry.size = files[path].stat().st_size
                with files[path].open("rb") as file:
                    archive.addfile(entry, file)
    fresh.rename(target)
    return str(described_manifest["digest"])


def full_name(name: str) -> str:
    """What containerd and kubelet call an image: with its registry, by default `docker.io`."""
    first, slash, _ = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def read(archive: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(index, configuration) of an archive of ours."""
    with tarfile.open(archive) as opened:

        def text(path: str) -> dict[str, Any]:
            file = opened.extractfile(path)
            found: dict[str, Any] = json.load(file) if file else {}
            return found

        index = text("index.json")
        manifest = text(_blob(index["manifests"][0]["digest"]))
        return index, text(_blob(manifest["config"]["digest"]))


def _bytes(told: Mapping[str, object]) -> bytes:
    return json.dumps(told, indent=1, sort_keys=True).encode()


def _described(kind: str, told: Mapping[str, object]) -> tuple[dict[str, Any], bytes]:
    text = _bytes(told)
    digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
    return {"mediaType": kind, "digest": digest, "size": len(text)}, text


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
