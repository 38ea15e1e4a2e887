// Goal: `swax doctor` says what fits and what does not, as text and as JSON, and no program that
// hangs holds it up. Method: its parts with made-up texts; programs that fail and that do not end;
// the program itself.
#include "ops/cli/doctor.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "ops/cli/doctor_process.h"
#include "proto/base/clock.h"
#include "tests/ops/cli_process.h"

namespace swax::test {
namespace {

TEST(Doctor, ProcessorNeedsEveryFlag) {
  const std::string head = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 bmi1 bmi2 ";
  const DoctorRow good = doctor_processor(head + "f16c fma movbe sse2\nbugs\t:\n");
  EXPECT_TRUE(good.fits);
  EXPECT_EQ(good.found, "Some CPU, x86-64-v3");
  const DoctorRow bad = doctor_processor(head + "f16c movbes fma\n");
  EXPECT_FALSE(bad.fits);
  EXPECT_EQ(bad.found, "Some CPU, without movbe");
  EXPECT_FALSE(doctor_processor("").fits);
}

TEST(Doctor, RowsOfTheRankProgram) {
  const auto rows =
      doctor_parse("CUDA\tok\tdriver for 13.0\nGPU 0 self test\tbad\terror 0.3\nwarning\n");
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_TRUE(rows[0].fits);
  EXPECT_EQ(rows[0].check, "CUDA");
  EXPECT_FALSE(rows[1].fits);
  EXPECT_EQ(rows[1].found, "error 0.3");
  EXPECT_FALSE(rows[2].fits);
  EXPECT_EQ(rows[2].found, "warning");
}

TEST(Doctor, LibrariesAreFoundByTheirFiles) {
  const std::string maps =
      "7f00-7f01 r--p 00000000 08:01 12  /opt/swax/lib/librocksdb.so.7.8.3\n"
      "7f02-7f03 r--p 00000000 08:01 13  /usr/lib/libzmq.so.5.2.4\n7f04-7f05 rw-p 0 00:00 0 "
      "[heap]\n";
  EXPECT_EQ(doctor_library(maps, "rocksdb"), "/opt/swax/lib/librocksdb.so.7.8.3");
  EXPECT_EQ(doctor_library(maps, "zmq"), "/usr/lib/libzmq.so.5.2.4");
  EXPECT_EQ(doctor_library(maps, "protobuf"), "");
}

TEST(Doctor, AProgramThatHangsIsKilled) {
  SystemClock clock;
  const int64_t begin_ms = clock.monotonic_ms();
  EXPECT_EQ(program_output({"/bin/sleep", "60"}, 300).status().code(), Code::kDeadlineExceeded);
  EXPECT_LT(clock.monotonic_ms() - begin_ms, 30'000);
  EXPECT_NE(program_output({"/bin/sh", "-c", "exit 3"}, 30'000).status().message().find("code 3"),
            std::string::npos);
  const auto output = program_output({"/bin/sh", "-c", "echo a; echo b"}, 30'000);
  ASSERT_TRUE(output.ok());
  EXPECT_EQ(*output, "a\nb\n");
}

TEST(Doctor, SaysAFolderThatCannotBeWritten) {
  for (const DoctorRow& row : doctor_machine("/proc/none")) {
    if (row.check != "state folder") continue;
    EXPECT_FALSE(row.fits);
    EXPECT_NE(row.found.find("/proc"), std::string::npos) << row.found;
    return;
  }
  ADD_FAILURE() << "no row for the state folder";
}

TEST(Doctor, TheProgramSaysItAsJson) {
  const Finished got = run_swax(testing::TempDir(), {"doctor", "--state", ".", "-o", "json"}, 100);
  const auto json = nlohmann::json::parse(got.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << got.out << got.err;
  EXPECT_EQ(got.exit_code, json["fits"] == true ? 0 : 1) << got.out;
  std::string checks;
  for (const auto& check : json["checks"]) {
    checks += check["check"].get<std::string>() + ",";
    EXPECT_TRUE(check["found"].is_string());
    EXPECT_EQ(check.contains("advice"), check["fits"] == false);
  }
  for (const char* word : {"processor,", "Open MPI,", "librocksdb,", "swax-train,", "state folder,",
                           "MPI library,", "CPU backend,", "GPU collectives,"}) {
    EXPECT_NE(checks.find(word), std::string::npos) << checks;
  }
}

TEST(Doctor, TheTableIsEightyColumnsWide) {
  const Finished got = run_swax(testing::TempDir(), {"doctor", "--state", "."}, 100);
  EXPECT_LE(longest_line(got.out), 80U) << got.out;
  EXPECT_GT(line_count(got.out), 8);
}

}  // namespace
}  // namespace swax::test
