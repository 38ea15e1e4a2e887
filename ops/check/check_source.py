#!/usr/bin/env python3
"""Checks sizes, banned names, orphan files and folder READMEs of the tree.

Usage: check_source.py [--root FOLDER]. Prints file:line, the rule and what to do; exit 1 on errors.
"""

import os
import re
import sys

import lint_common as lint

BANNED = "ops/check/banned.txt"
FILE_LINES_SOFT, FILE_LINES_HARD = 400, 800
FUNCTION_LINES_SOFT, FUNCTION_LINES_HARD = 70, 140
LINE_COLUMNS = 120
README_LINES = 40
TEST_DATA = "tests/data/"  # may be binary
README_HEADINGS = ["## What", "## May include", "## Data in and out", "## Read first"]
SCRIPT_ENDINGS = (".py", ".sh", ".cmake", ".proto")
WAIVER = re.compile(r"//\s*lint: allow ([a-z-]+)(?::\s*(\S.*))?")
# At column 0 these open something that is no function.
NO_FUNCTION = re.compile(
    r"^(namespace|class|struct|enum|union|extern|typedef|using|template\s*<[^>]*>\s*(class|struct))\b"
    r"|^[#}]|.*=\s*\{\s*$"
)


class Ban:
    def __init__(self, fields):
        self.name = fields["name"]
        self.find = re.compile(fields["find"])
        self.text = fields.get("text", "code")
        self.places = re.split(r"[,\s]+", fields["in"])
        self.exceptions = [p for p in re.split(r"[,\s]+", fields.get("except", "")) if p]
        self.say = fields["say"]

    def applies(self, path):
        return lint.matches_any(path, self.places) and not lint.matches_any(path, self.exceptions)


def read_bans(text):
    bans, fields = [], {}
    for number, line in enumerate(text.splitlines() + [""], 1):
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                bans.append(Ban(fields))
                fields = {}
            continue
        key, colon, value = line.partition(":")
        if not colon or key not in ("name", "find", "text", "in", "except", "say"):
            raise ValueError(f"{BANNED}:{number}: expected name, find, text, in, except or say")
        fields[key] = value.strip()
    return bans


def with_opening(lines, index):
    """Line index behind the line before it, where that one ends in an open bracket."""
    before = lines[index - 1].rstrip() if index else ""
    return before + lines[index].lstrip() if before.endswith("(") else lines[index]


def expand_loops(text):
    """CMake text with each `foreach(NAME ITEMS)` written out, innermost first."""
    head, body = r"\bforeach\s*\(\s*(\w+)\s+([^()]*)\)", r"((?:(?!\bforeach\b).)*?)"
    loop = re.compile(head + body + r"\bendforeach\s*\(\s*\)", re.DOTALL)
    while True:
        expanded = loop.sub(
            lambda m: "\n".join(m.group(3).replace("${%s}" % m.group(1), item) for item in m.group(2).split()), text)
        if expanded == text:
            return text
        text = expanded


def functions(lines):
    """(first line, length) of each function body that opens and closes at column 0 of formatted code."""
    start = None
    for number, line in enumerate(lines, 1):
        if line[:1].strip() and not line.startswith("}") and start is None:
            if line.rstrip().endswith("{") and not NO_FUNCTION.match(line):
                start = number
            elif "(" in line and not NO_FUNCTION.match(line) and not line.rstrip().endswith((";", "}")):
                start = -number  # a signature over several lines: wait for its brace
        elif start is not None and start < 0:
            stripped = line.rstrip()
            if stripped.endswith("{"):
                start = -start
            elif stripped.endswith((";", "}")):
                start = None
        if start is not None and start > 0 and line.startswith("}"):
            yield start, number - start + 1
            start = None


class Checker:
    def __init__(self, root):
        self.root = root
        self.files = lint.tree_files(root)
        self.out = lint.Findings()
        self.bans = read_bans(lint.read(root, BANNED))

    def run(self):
        sources = lint.source_files(self.files)
        texts = {path: lint.read(self.root, path) for path in sources}
        for path, text in texts.items():
            self.check_size(path, text)
            self.check_bans(path, text)
            self.check_header(path, text)
        for path in self.files:
            if not path.startswith(TEST_DATA) and lint.is_binary(self.root, path):
                self.out.error(path, 1, "binary", "no text: what is built or fetched stays out of the tree")
            elif path.endswith(SCRIPT_ENDINGS) or os.path.basename(path) == "CMakeLists.txt":
                self.check_size(path, lint.read(self.root, path))
        self.check_orphan_sources(sources)
        self.check_orphan_headers(sources, texts)
        self.check_readmes(sources)
        return self.out.report("check_source", f"{len(sources)} files")

    def check_size(self, path, text):
        lines = text.splitlines()
        if len(lines) > FILE_LINES_HARD:
            self.out.error(path, len(lines), "file-length", f"more than {FILE_LINES_HARD} lines: split it")
        elif len(lines) > FILE_LINES_SOFT:
            self.out.warn(path, len(lines), "file-length", f"more than {FILE_LINES_SOFT} lines")
        for number, line in enumerate(lines, 1):
            # Message files are tables: a field, its options and its comment stay on one line.
            if len(line) > LINE_COLUMNS and not path.endswith(".proto"):
                self.out.error(path, number, "line-length", f"{len(line)} columns, at most {LINE_COLUMNS}")
            if line != line.rstrip() and not line.endswith("\f"):
                self.out.error(path, number, "trailing-space", "ends with white space")
        if text and not text.endswith("\n"):
            self.out.error(path, len(lines), "last-line", "does not end with a newline")
        if path.endswith((".cc", ".cu")):
            for start, length in functions(lint.strip_source(text).splitlines()):
                if length > FUNCTION_LINES_HARD:
                    self.out.error(path, start, "function-length", f"{length} lines, at most {FUNCTION_LINES_HARD}")
                elif length > FUNCTION_LINES_SOFT:
                    self.out.warn(path, start, "function-length", f"{length} lines, aim at {FUNCTION_LINES_SOFT}")

    def check_bans(self, path, text):
        bans = [ban for ban in self.bans if ban.applies(path)]
        original = text.splitlines()
        views = {
            "all": original,
            "strings": lint.strip_source(text, keep_strings=True).splitlines(),
            "code": lint.strip_source(text).splitlines(),
        }
        for index, line in enumerate(original):
            waiver = WAIVER.search(line)
            if waiver and not waiver.group(2):
                self.out.error(path, index + 1, "waiver", "give the reason: // lint: allow NAME: why")
            for ban in bans:
                if waiver and waiver.group(1) == ban.name:
                    continue
                view = views[ban.text]
                if ban.find.search(view[index]) and ban.find.search(with_opening(view, index)):
                    self.out.error(path, index + 1, ban.name, ban.say)

    def check_header(self, path, text):
        if path.endswith(".h") and "#pragma once" not in text:
            self.out.error(path, 1, "pragma-once", "headers begin with #pragma once")

    def check_orphan_sources(self, sources):
        """Each source (and each Python test) is named by a CMakeLists.txt of its folder or above."""
        lists = {os.path.dirname(f): self.cmake_text(f) for f in self.files
                 if os.path.basename(f) == "CMakeLists.txt"}
        words = {folder: set(re.split(r"[\s()\"]+", text)) for folder, text in lists.items()}
        python_tests = [f for f in self.files if f.startswith("tests/") and f.endswith("_test.py")]
        for path in [f for f in sources if f.endswith((".cc", ".cu"))] + python_tests:
            folder = self.naming_folder(path, words)
            if folder is None:
                self.out.error(path, 1, "orphan", "no CMakeLists.txt names it: add it to a target or delete it")
            elif path.endswith("_test.cc") and path.startswith("tests/"):
                self.check_registered(path, os.path.relpath(path, folder or "."), lists[folder])
        for folder in sorted(words):
            if folder and self.naming_folder(folder, words) is None:
                self.out.error(folder + "/CMakeLists.txt", 1, "orphan", "no add_subdirectory above names its folder")

    @staticmethod
    def naming_folder(path, words):
        """The nearest folder above whose CMakeLists.txt names path relative to itself, or None."""
        folder = os.path.dirname(path)
        while True:
            relative = os.path.relpath(path, folder or ".")
            named = {relative, "${CMAKE_CURRENT_SOURCE_DIR}/" + relative, "${CMAKE_SOURCE_DIR}/" + path}
            if folder in words and named & words[folder]:
                return folder
            if not folder:
                return None
            folder = os.path.dirname(folder)

    def cmake_text(self, path):
        """A CMakeLists.txt with the files it includes from its own folder, without comments."""
        text = re.sub(r"#[^\n]*", "", lint.read(self.root, path))
        for name in re.findall(r"\binclude\s*\(\s*([\w./-]+\.cmake)\s*\)", text):
            other = os.path.join(os.path.dirname(path), name)
            if other in self.files:
                text += re.sub(r"#[^\n]*", "", lint.read(self.root, other))
        return expand_loops(text)

    def check_registered(self, path, relative, text):
        """A target made of the file is a swax_test, or a program that some add_test starts."""
        calls = re.findall(r"\b(\w+)\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)", text)
        for command, body in calls:
            words = re.split(r"[\s\"]+", body.strip())
            if relative not in words:
                continue
            started = rf"\$<TARGET_FILE:{re.escape(words[0])}>|\bCOMMAND\s+{re.escape(words[0])}\b"
            if command == "swax_test" or any("test" in c and re.search(started, b) for c, b in calls):
                return
            helper = rf"function\s*\(\s*{re.escape(command)}\b.*?\bswax_test\s*\("
            if re.search(helper, text, re.DOTALL):
                return
        self.out.error(path, 1, "unregistered", "a test file that no swax_test() or add_test() runs")

    def check_orphan_headers(self, sources, texts):
        included = set()
        for text in texts.values():
            included.update(re.findall(r'^\s*#\s*include\s*"([^"]+)"', text, re.MULTILINE))
        for path in sources:
            if path.endswith((".h", ".cuh")) and path not in included:
                self.out.error(path, 1, "orphan", "no file includes it: use it or delete it")

    def check_readmes(self, sources):
        """Top-level folders and each folder with sources have one screen of README; tests has one."""
        wanted = set(lint.PRODUCT_FOLDERS) | {"tests"}
        wanted.update(os.path.dirname(f) for f in sources if not f.startswith("tests/"))
        files = set(self.files)
        for folder in sorted(wanted):
            parent_covers = os.path.dirname(folder) == "kernels"  # spec and cpu are told in kernels/README.md
            if f"{folder}/README.md" not in files and not parent_covers:
                self.out.error(folder, 1, "readme", "has no README.md")
        for path in self.files:
            if os.path.basename(path) == "README.md" and "/" in path:
                self.check_readme(path)

    def check_readme(self, path):
        lines = lint.read(self.root, path).splitlines()
        if len(lines) > README_LINES:
            self.out.error(path, len(lines), "readme", f"{len(lines)} lines, at most {README_LINES}")
        found = [line.strip() for line in lines if line.startswith("## ")]
        missing = [heading for heading in README_HEADINGS if heading not in found]
        if missing:
            self.out.error(path, 1, "readme", "missing heading: " + ", ".join(missing))


def main():
    root = lint.main_root(sys.argv)
    try:
        return Checker(root).run()
    except (OSError, ValueError, KeyError, re.error) as error:
        print(f"check_source: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
