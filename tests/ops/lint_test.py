#!/usr/bin/env python3
"""Goal: the checkers of ops/check find what they promise, and nothing in a clean tree.

Method: a small clean tree is written to a temporary folder with the real rule files; each test
plants one violation and asserts the file, the line and the rule that are printed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
CHECK = os.path.join(HERE, "..", "..", "ops", "check")
README = "# x\n\n## What\n\n## May include\n\n## Data in and out\n\n## Read first\n"
CLEAN = {
    "CMakeLists.txt": "add_subdirectory(jobs)\nadd_subdirectory(tests)\n",
    "jobs/CMakeLists.txt": "swax_library(swax_jobs SOURCES layout.cc)\n",
    "jobs/layout.h": "#pragma once\n\n#include <vector>\n",
    "jobs/layout.cc": '#include "jobs/layout.h"\n\n#include "proto/job.pb.h"\n',
    "proto/job.proto": 'syntax = "proto3";\n',
    "tests/CMakeLists.txt": "foreach(dir jobs ops)\n  add_subdirectory(${dir})\nendforeach()\n",
    "tests/jobs/CMakeLists.txt": "swax_test(layout_test SOURCES layout_test.cc DEPS swax_jobs)\n",
    "tests/jobs/layout_test.cc": '#include <gtest/gtest.h>\n\n#include "jobs/layout.h"\n',
}
FOLDERS = ("proto", "jobs", "kernels", "storage", "worker", "coordinator", "ops", "tests")


class LintTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="swax-lint-")
        self.addCleanup(shutil.rmtree, self.root)
        for folder in FOLDERS:
            self.write(f"{folder}/README.md", README)
        for path, text in CLEAN.items():
            self.write(path, text)
        os.makedirs(os.path.join(self.root, "ops/check"))
        for name in ("layers.txt", "banned.txt"):
            shutil.copy(os.path.join(CHECK, name), os.path.join(self.root, "ops/check", name))

    def write(self, path, text):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as stream:
            stream.write(text)

    def append(self, path, text):
        with open(os.path.join(self.root, path), "a", encoding="utf-8") as stream:
            stream.write(text)

    def check(self, checker):
        """Exit status and printed lines."""
        done = subprocess.run(
            [sys.executable, os.path.join(CHECK, checker), "--root", self.root],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=60)
        return done.returncode, done.stdout

    def expect(self, checker, *starts):
        """Exactly these findings, each given by the start of its line."""
        status, text = self.check(checker)
        found = [line for line in text.splitlines() if not line.startswith(checker[:-3] + ":")]
        self.assertEqual(status, 1 if starts else 0, text)
        self.assertEqual(len(found), len(starts), text)
        for start in starts:
            self.assertTrue(any(line.startswith(start) for line in found), f"no '{start}' in:\n{text}")


class IncludesTest(LintTest):
    def test_clean_tree_passes(self):
        self.expect("check_includes.py")

    def test_lower_folder_including_higher_one(self):
        self.write("storage/kv.h", "#pragma once\n")
        self.append("jobs/layout.cc", '#include "storage/kv.h"\n')
        self.expect("check_includes.py", "jobs/layout.cc:4: dag: jobs must not include storage/kv.h")

    def test_siblings_that_share_only_messages(self):
        self.write("coordinator/server.h", "#pragma once\n")
        self.write("worker/agent/agent.cc", '\n#include "coordinator/server.h"\n')
        self.expect("check_includes.py", "worker/agent/agent.cc:2: dag: worker/agent must not")

    def test_core_must_not_include_its_shell(self):
        self.write("coordinator/server.h", "#pragma once\n")
        self.write("coordinator/core/step.cc", '#include "coordinator/server.h"\n')
        self.expect("check_includes.py", "coordinator/core/step.cc:1: dag: coordinator/core must not")

    def test_product_including_tests(self):
        self.write("tests/support/fakes.h", "#pragma once\n")
        self.append("jobs/layout.cc", '#include "tests/support/fakes.h"\n')
        self.expect("check_includes.py", "jobs/layout.cc:4: dag: nothing includes tests")

    def test_third_party_header_outside_its_door(self):
        self.append("jobs/layout.cc", "#include <rocksdb/db.h>\n")
        self.write("storage/rocks_kv.cc", "#include <rocksdb/db.h>\n")
        self.expect("check_includes.py", "jobs/layout.cc:4: door: <rocksdb/db.h> only in storage/rocks_kv.*")

    def test_quoted_third_party_header_has_the_same_door(self):
        self.append("jobs/layout.cc", '#include "spdlog/spdlog.h"\n')
        self.expect("check_includes.py", "jobs/layout.cc:4: door: <spdlog/spdlog.h>")

    def test_unlisted_header(self):
        self.append("jobs/layout.cc", "#include <boost/any.hpp>\n#include <random>\n")
        self.expect("check_includes.py", "jobs/layout.cc:4: door: <boost/any.hpp> is not in",
                    "jobs/layout.cc:5: door: <random> is not in")

    def test_path_not_from_the_root(self):
        self.append("jobs/layout.cc", '#include "layout.h"\n')
        self.expect("check_includes.py", 'jobs/layout.cc:4: path: "layout.h" is no file')

    def test_pure_core_with_a_clock(self):
        self.write("worker/agent/core/agent_core.cc", "#include <map>\n#include <chrono>\n")
        self.expect("check_includes.py", "worker/agent/core/agent_core.cc:2: pure: worker/agent/core must")

    def test_includes_in_comments_do_not_count(self):
        self.append("jobs/layout.cc", "// #include <mpi.h>\n/*\n#include <zmq.h>\n*/\n")
        self.expect("check_includes.py")

    def test_folder_without_a_line(self):
        self.write("worker/other/x.h", "#pragma once\n")
        self.expect("check_includes.py", "worker/other/x.h:1: dag: its folder has no line")

    def test_circle_in_the_rules(self):
        path = os.path.join(self.root, "ops/check/layers.txt")
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
        self.write("ops/check/layers.txt", text.replace("proto/base        :", "proto/base        : jobs"))
        self.expect("check_includes.py", "ops/check/layers.txt:1: dag: folders include each other")

    def test_unreadable_rules_are_an_error(self):
        self.append("ops/check/layers.txt", "[layers]\nno colon here\n")
        status, text = self.check("check_includes.py")
        self.assertEqual(status, 2, text)
        self.assertIn("expected `names : names`", text)


class SourceTest(LintTest):
    # rule: a line that breaks it
    PLANTED = {
        "random": "int a = rand();",
        "parse-number": "double a = std::strtod(text, nullptr);",
        "print-number": "auto a = std::to_string(1.5);",
        "printf-float": 'std::printf("loss %.3f\\n", loss);',
        "locale": 'setlocale(LC_ALL, "");',
        "using-namespace": "using namespace std;",
        "host-name": "auto* a = gethostbyname(name);",
        "exceptions": "throw std::bad_alloc();",
        "rtti": "auto* a = dynamic_cast<Layer*>(b);",
        "raw-new": "auto* a = new Layer(3);",
        "malloc": "void* a = malloc(3);",
        "process-exit": "std::exit(3);",
        "shell": "std::system(command);",
        "fork": "int pid = fork();",
        "wall-clock": "auto a = std::chrono::system_clock::now();",
        "unsafe-c": "strcpy(a, b);",
        "fast-math": "#pragma GCC optimize(\"fast\")",
        "reminder": "// TODO: later",
        "include-guard": "#ifndef SWAX_LAYOUT_H_",
    }

    def plant(self, line, path="jobs/layout.cc"):
        self.append(path, line + "\n")

    def test_clean_tree_passes(self):
        self.expect("check_source.py")

    def test_every_banned_name_is_found(self):
        for index, line in enumerate(self.PLANTED.values()):
            self.plant(line)
        starts = [f"jobs/layout.cc:{index + 4}: {rule}:" for index, rule in enumerate(self.PLANTED)]
        self.expect("check_source.py", *starts)

    def test_every_rule_has_a_planted_violation(self):
        with open(os.path.join(CHECK, "banned.txt"), encoding="utf-8") as stream:
            names = [line.split()[1] for line in stream if line.startswith("name:")]
        self.assertEqual(sorted(names), sorted(self.PLANTED))

    def test_names_that_only_look_banned(self):
        for line in ('log_info("train", "strtod( and rand() in text", {});', "// a comment may say strtod()",
                     "int operand(int a);", "arena.release(3);", "collectives.abort(Reason{});",
                     'std::snprintf(text, 8, "%d%%", 3);', "Kept(const Kept&) = delete;",
                     "char c = '\"'; int big = 1'000'000;", 'auto s = R"(strcpy(a, b))";',
                     "using namespace std::chrono_literals;", "double rtime(int x);",
                     "std::unique_ptr<Fsdp> self(new Fsdp(3));",
                     "return std::unique_ptr<Fsdp>(\n    new Fsdp(3));"):
            self.plant(line)
        self.expect("check_source.py")

    def test_waiver_needs_the_right_name_and_a_reason(self):
        self.plant("auto* a = new Layer(3);  // lint: allow raw-new: the library takes ownership")
        self.plant("auto* b = new Layer(3);  // lint: allow malloc: wrong name")
        self.plant("auto* c = new Layer(3);  // lint: allow raw-new")
        self.expect("check_source.py", "jobs/layout.cc:5: raw-new:", "jobs/layout.cc:6: waiver:")

    def test_long_file_long_line_and_white_space(self):
        self.plant("int a = 0;" + " " * 2)
        self.plant("// " + "x" * 118)
        for _ in range(800):
            self.plant("int b = 0;")
        self.expect("check_source.py", "jobs/layout.cc:4: trailing-space:", "jobs/layout.cc:5: line-length:",
                    "jobs/layout.cc:805: file-length: more than 800")

    def test_file_over_the_soft_limit_is_only_a_warning(self):
        for _ in range(400):
            self.plant("int b = 0;")
        status, text = self.check("check_source.py")
        self.assertEqual(status, 0, text)
        self.assertIn("jobs/layout.cc:403: file-length: warning: more than 400 lines", text)

    def test_long_function(self):
        self.plant("Status Layout::plan(const ModelShape& shape,\n                    int ranks) {")
        for _ in range(140):
            self.plant("  work();")
        self.plant("}")
        self.plant("namespace swax {\nint f() {\n  return 3;\n}\n" + "int g = 0;\n" * 150 + "}")
        self.expect("check_source.py", "jobs/layout.cc:4: function-length: 143 lines")

    def test_missing_last_newline(self):
        self.append("jobs/layout.cc", "int a = 0;")
        self.expect("check_source.py", "jobs/layout.cc:4: last-line:")

    def test_binary_file(self):
        self.write("tool.whl", "PK\3\4\0\0")
        self.expect("check_source.py", "tool.whl:1: binary:")

    def test_orphans(self):
        self.write("jobs/left.cc", '#include "jobs/layout.h"\n')
        self.write("jobs/left.h", "#pragma once\n")
        self.write("storage/CMakeLists.txt", "\n")
        self.write("tests/jobs/left_test.py", "\n")
        self.expect("check_source.py", "jobs/left.cc:1: orphan:", "jobs/left.h:1: orphan:",
                    "storage/CMakeLists.txt:1: orphan:", "tests/jobs/left_test.py:1: orphan:")

    def test_name_in_a_cmake_comment_does_not_count(self):
        self.write("jobs/left.cc", '#include "jobs/layout.h"\n')
        self.append("jobs/CMakeLists.txt", "# left.cc\n")
        self.expect("check_source.py", "jobs/left.cc:1: orphan:")

    def test_test_file_in_no_test(self):
        self.write("tests/jobs/extra_test.cc", '#include "jobs/layout.h"\n')
        self.append("tests/jobs/CMakeLists.txt", "swax_library(helpers SOURCES extra_test.cc)\n")
        self.expect("check_source.py", "tests/jobs/extra_test.cc:1: unregistered:")

    def test_other_ways_to_register_a_test(self):
        for name in ("extra", "third", "fourth", "fifth"):
            self.write(f"tests/jobs/{name}_test.cc", '#include "jobs/layout.h"\n')
        self.append("tests/jobs/CMakeLists.txt",
                    "swax_executable(extra_test SOURCES extra_test.cc)\n"
                    "function(mpi_test name)\n"
                    "  add_test(NAME ${name} COMMAND mpirun -n 2 $<TARGET_FILE:extra_test> ${ARGN})\n"
                    "endfunction()\n"
                    "function(jobs_test name)\n  swax_test(${name} SOURCES ${ARGN})\nendfunction()\n"
                    "jobs_test(third_test third_test.cc)\ninclude(more.cmake)\n"
                    "foreach(test fifth_test)\n  swax_test(${test} SOURCES ${test}.cc)\nendforeach()\n")
        self.write("tests/jobs/more.cmake", "swax_test(fourth_test SOURCES fourth_test.cc)\n")
        self.expect("check_source.py")

    def test_program_that_no_test_starts(self):
        self.write("tests/jobs/extra_test.cc", '#include "jobs/layout.h"\n')
        self.append("tests/jobs/CMakeLists.txt", "swax_executable(extra_test SOURCES extra_test.cc)\n")
        self.expect("check_source.py", "tests/jobs/extra_test.cc:1: unregistered:")

    def test_header_without_pragma_once(self):
        self.write("jobs/layout.h", "#include <vector>\n")
        self.expect("check_source.py", "jobs/layout.h:1: pragma-once:")

    def test_readmes(self):
        self.write("jobs/README.md", README.replace("## Read first", "## More"))
        self.write("storage/README.md", README + "\n" * 40)
        os.remove(os.path.join(self.root, "kernels/README.md"))
        self.expect("check_source.py", "jobs/README.md:1: readme: missing heading: ## Read first",
                    "storage/README.md:49: readme: 49 lines", "kernels:1: readme: has no README.md")

    def test_build_folders_are_left_out(self):
        self.write("build/dev/jobs/x.cc", "int a = rand();\n")
        self.write("runs/a/jobs/x.cc", "int a = rand();\n")
        self.expect("check_source.py")


if __name__ == "__main__":
    unittest.main()
