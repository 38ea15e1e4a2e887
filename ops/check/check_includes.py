#!/usr/bin/env python3
"""Checks every #include against ops/check/layers.txt: folder order and third-party doors.

Usage: check_includes.py [--root FOLDER]. Prints file:line, the rule and what to do; exit 1 on errors.
"""

import os
import re
import sys

import lint_common as lint

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:<([^>]+)>|"([^"]+)")')
RULES = "ops/check/layers.txt"


class Rules:
    """layers.txt as tables. Raises ValueError with a line number when it cannot be read."""

    def __init__(self, text):
        self.layers = {}
        self.doors = []
        self.standard = set()
        self.forbid = []
        section = None
        for number, line in enumerate(text.splitlines(), 1):
            line = line.split("#", 1)[0].strip()
            if not line:
                continue
            if line.startswith("["):
                section = line.strip("[]")
                if section not in ("layers", "doors", "standard", "forbid"):
                    raise ValueError(f"{number}: unknown section {line}")
            elif section == "standard":
                self.standard.update(line.split())
            elif section is None or ":" not in line:
                raise ValueError(f"{number}: expected `names : names`")
            else:
                left, right = (side.split() for side in line.split(":", 1))
                if section == "layers":
                    self.layers[left[0]] = right
                elif section == "doors":
                    self.doors.append((left, right))
                else:
                    self.forbid.append((left, right))

    def layer_of(self, path):
        """The longest folder of the table that holds path, or None."""
        folder = os.path.dirname(path)
        while folder:
            if folder in self.layers:
                return folder
            folder = os.path.dirname(folder)
        return None

    def cycle(self):
        """A list of folders that include each other in a circle, or None."""
        done, stack = set(), []

        def visit(layer):
            if layer in stack:
                return stack[stack.index(layer):] + [layer]
            if layer in done or layer not in self.layers:
                return None
            stack.append(layer)
            for other in self.layers[layer]:
                found = visit(other)
                if found:
                    return found
            stack.pop()
            done.add(layer)
            return None

        for layer in self.layers:
            found = visit(layer)
            if found:
                return found
        return None

    def unknown_layers(self):
        return [
            f"{layer} names {other}"
            for layer, others in self.layers.items()
            for other in others
            if other != "**" and other not in self.layers
        ]


class Checker:
    def __init__(self, root):
        self.root = root
        self.files = lint.tree_files(root)
        self.known = set(self.files)
        self.out = lint.Findings()
        self.rules = Rules(lint.read(root, RULES))

    def run(self):
        cycle = self.rules.cycle()
        if cycle:
            self.out.error(RULES, 1, "dag", "folders include each other: " + " -> ".join(cycle))
        for text in self.rules.unknown_layers():
            self.out.error(RULES, 1, "dag", f"{text}, which has no line")
        sources = lint.source_files(self.files)
        for path in sources:
            self.check_file(path)
        return self.out.report("check_includes", f"{len(sources)} files")

    def check_file(self, path):
        layer = self.rules.layer_of(path)
        if layer is None:
            self.out.error(path, 1, "dag", f"its folder has no line in {RULES}")
            return
        text = lint.strip_source(lint.read(self.root, path), keep_strings=True)
        for number, line in enumerate(text.splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            name = match.group(1) or match.group(2)
            self.check_forbidden(path, number, layer, name)
            if match.group(2) and self.is_ours(name):
                self.check_layer(path, number, layer, name)
            else:
                self.check_door(path, number, name, quoted=bool(match.group(2)))

    def is_ours(self, name):
        if name in self.known:
            return True
        generated = re.sub(r"\.pb\.h$", ".proto", name)
        return generated != name and generated in self.known

    def check_layer(self, path, number, layer, name):
        other = self.rules.layer_of(name)
        if other == layer:
            return
        if other == "tests":
            self.out.error(path, number, "dag", f"nothing includes tests ({name})")
            return
        allowed = self.rules.layers[layer]
        if other is None or (other not in allowed and "**" not in allowed):
            shown = " ".join(allowed) or "nothing of ours"
            self.out.error(path, number, "dag", f"{layer} must not include {name}; it may include: {shown}")

    def check_door(self, path, number, name, quoted):
        if not quoted and name in self.rules.standard:
            return
        for headers, places in self.rules.doors:
            if lint.matches_any(name, headers):
                if not lint.matches_any(path, places):
                    self.out.error(path, number, "door", f"<{name}> only in {' '.join(places)}")
                return
        if quoted:
            self.out.error(path, number, "path", f'"{name}" is no file of the tree; paths start at the root')
        else:
            self.out.error(path, number, "door", f"<{name}> is not in {RULES}: no file may include it")

    def check_forbidden(self, path, number, layer, name):
        for layers, headers in self.rules.forbid:
            if layer in layers and lint.matches_any(name, headers):
                self.out.error(path, number, "pure", f"{layer} must not see {name}: pass the value in")


def main():
    root = lint.main_root(sys.argv)
    try:
        return Checker(root).run()
    except (OSError, ValueError) as error:
        print(f"{RULES}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
