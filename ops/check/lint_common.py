"""What both checkers share: the files of the tree, findings, and source text without comments."""

import os
import re
import sys

SOURCE_ENDINGS = (".cc", ".h", ".cu", ".cuh")
PRODUCT_FOLDERS = ("proto", "jobs", "kernels", "storage", "worker", "coordinator", "ops")
SKIPPED_FOLDERS = re.compile(r"^(\.git|\.venv|\.cache|build.*|runs|bundle|__pycache__)$")


class Findings:
    """Collects `file:line: rule: text`. Errors decide the exit status, warnings do not."""

    def __init__(self):
        self.errors = []
        self.warnings = []

    def error(self, path, line, rule, text):
        self.errors.append(f"{path}:{line}: {rule}: {text}")

    def warn(self, path, line, rule, text):
        self.warnings.append(f"{path}:{line}: {rule}: warning: {text}")

    def report(self, name, what):
        for line in self.warnings + self.errors:
            print(line)
        print(f"{name}: {what}: {len(self.errors)} errors, {len(self.warnings)} warnings")
        return 1 if self.errors else 0


def tree_files(root):
    """Every file below root as a path with '/', in a fixed order; build output is left out."""
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if not SKIPPED_FOLDERS.match(f))
        for name in files:
            found.append(os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/"))
    return sorted(found)


def source_files(files):
    """C++ sources of the product folders and tests."""
    roots = PRODUCT_FOLDERS + ("tests",)
    return [f for f in files if f.endswith(SOURCE_ENDINGS) and f.split("/")[0] in roots]


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as stream:
        return stream.read()


def is_binary(root, path):
    with open(os.path.join(root, path), "rb") as stream:
        return b"\0" in stream.read(8192)


def glob_regex(pattern):
    """`*` stays inside one path component, `**` crosses them."""
    parts = re.split(r"(\*\*|\*|\?)", pattern)
    table = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(table.get(p, re.escape(p)) for p in parts) + r"\Z")


def matches_any(path, patterns):
    return any(glob_regex(p).match(path) for p in patterns)


TOKEN = re.compile(
    r"""
      (?P<line>//[^\n]*)
    | (?P<block>/\*.*?\*/)
    | (?P<raw>R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)")
    | (?P<text>"(?:\\.|[^"\\\n])*")
    | (?P<char>(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+')
    """,
    re.VERBOSE | re.DOTALL,
)


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def strip_source(text, keep_strings=False):
    """Replaces comments (and the insides of strings) by spaces; lines and columns stay."""

    def replace(match):
        whole = match.group(0)
        if match.group("line") or match.group("block"):
            return blank(whole)
        return whole if keep_strings else whole[0] + blank(whole[1:-1]) + whole[-1]

    return TOKEN.sub(replace, text)


def main_root(argv):
    """`--root FOLDER`; without it the tree that holds this file."""
    if len(argv) == 3 and argv[1] == "--root":
        return argv[2]
    if len(argv) == 1:
        return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    print(f"usage: {os.path.basename(argv[0])} [--root FOLDER]", file=sys.stderr)
    raise SystemExit(2)
