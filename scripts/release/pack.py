#!/usr/bin/env python3
"""The files of a release beside the program, with the same bytes on every run. Python's standard library only.

    pack.py licences TARGET FILE          the licences of all crates that are linked into the program
    pack.py sbom TARGET FILE              these crates as CycloneDX 1.5
    pack.py archive FOLDER FILE.tar.gz    a folder, sorted, without times and owners
    pack.py sums FOLDER NAME...           NAME.sha256 beside each file, as sha256sum writes it
"""

import collections
import gzip
import hashlib
import io
import json
import pathlib
import re
import subprocess
import sys
import tarfile

LICENCE_FILES = re.compile(r"(?i)^(licen[cs]e|copying|copyright|notice|unlicense)")


def crates(target):
    """The program and the crates that are linked into it on a target, each with those that it needs."""
    options = ["--locked", "--target", target, "--package", "tinderbox", "--edges", "normal,no-proc-macro"]
    command = ["cargo", "tree", *options, "--prefix", "depth", "--format", " {p}"]
    tree = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    needs, path = {}, []
    for line in tree.splitlines():
        depth, name, version = line.split()[:3]
        crate = (name, version.removeprefix("v"))
        path[int(depth) :] = [crate]
        needs.setdefault(crate, set())
        if len(path) > 1:
            needs[path[-2]].add(crate)
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    metadata = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    packages = {(package["name"], package["version"]): package for package in metadata["packages"]}
    found = [(packages[crate], [packages[need] for need in sorted(needs[crate])]) for crate in sorted(needs)]
    return found, packages[path[0]]


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def checksums():
    """The SHA-256 of each package of Cargo.lock that came from a registry."""
    lock = pathlib.Path("Cargo.lock").read_text(encoding="utf-8")
    entry = re.compile(r'name = "(.+)"\nversion = "(.+)"\nsource = .+\nchecksum = "(.+)"')
    return {(name, version): checksum for name, version, checksum in entry.findall(lock)}


def sbom(target):
    found, root = crates(target)
    known = checksums()

    def component(package):
        described = {
            "type": "application" if package is root else "library",
            "bom-ref": purl(package),
            "name": package["name"],
            "version": package["version"],
            "purl": purl(package),
        }
        if package["license"]:
            described["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        if checksum := known.get((package["name"], package["version"])):
            described["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        return described

    return json.dumps(
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {"component": component(root), "properties": [{"name": "target", "value": target}]},
            "components": [component(package) for package, _ in found if package is not root],
            "dependencies": [{"ref": purl(p), "dependsOn": [purl(n) for n in needs]} for p, needs in found],
        },
        indent=1,
    )


def licences(target):
    """Each text of a licence once, below the crates that come with it."""
    holders, without = collections.defaultdict(list), []
    for package, _ in crates(target)[0]:
        if package["source"] is None:
            continue  # our own
        title = f"{package['name']} {package['version']} ({package['license'] or 'see below'})"
        folder = pathlib.Path(package["manifest_path"]).parent
        files = sorted(path for path in folder.iterdir() if path.is_file() and LICENCE_FILES.match(path.name))
        for path in files:
            holders[path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n").strip()].append(title)
        if not files:
            without.append(title)
    parts = ["Licences of the crates that are linked into this program.\n"]
    parts += ["Without a file of their own, under the licences that they name:\n\n" + "\n".join(without) + "\n"]
    for text, titles in sorted(holders.items(), key=lambda item: item[1]):
        parts.append("\n".join(titles) + "\n\n" + text + "\n")
    return ("\n" + "-" * 80 + "\n\n").join(parts)


def archive(folder, path):
    folder = pathlib.Path(folder)

    def plain(info):
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
        return info

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(folder, arcname=folder.name, filter=plain)  # it sorts folders
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as gz:
        gz.write(packed.getvalue())


def main():
    match sys.argv[1:]:
        case ["licences", target, path]:
            pathlib.Path(path).write_text(licences(target), encoding="utf-8", newline="\n")
        case ["sbom", target, path]:
            pathlib.Path(path).write_text(sbom(target) + "\n", encoding="utf-8", newline="\n")
        case ["archive", folder, path]:
            archive(folder, path)
        case ["sums", folder, *names]:
            for name in names:
                digest = hashlib.sha256(pathlib.Path(folder, name).read_bytes()).hexdigest()
                pathlib.Path(folder, f"{name}.sha256").write_text(f"{digest}  {name}\n", newline="\n")
        case _:
            sys.exit(__doc__)


main()
