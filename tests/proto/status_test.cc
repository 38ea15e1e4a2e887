// Goal: codes and messages survive every way a Status or Result travels. Method: direct calls.
#include "proto/base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

namespace swax {
namespace {

TEST(Status, OkHasNoMessage) {
  EXPECT_TRUE(ok().ok());
  EXPECT_EQ(ok().to_string(), "OK");
  EXPECT_EQ(ok().with_context("load").to_string(), "OK");
}

TEST(Status, ContextGoesInFrontAndKeepsTheCode) {
  const Status s = data_loss("chunk 3").with_context("manifest").with_context("load");
  EXPECT_EQ(s.code(), Code::kDataLoss);
  EXPECT_EQ(s.message(), "load: manifest: chunk 3");
  EXPECT_EQ(s.to_string(), "DATA_LOSS: load: manifest: chunk 3");
}

TEST(Status, EveryCodeHasItsOwnName) {
  std::set<std::string> names;
  for (int code = 0; code <= static_cast<int>(Code::kInternal); ++code) {
    names.insert(code_name(static_cast<Code>(code)));
  }
  EXPECT_EQ(names.size(), 12U);
  EXPECT_EQ(names.count("UNKNOWN"), 0U);
  EXPECT_STREQ(code_name(static_cast<Code>(99)), "UNKNOWN");
}

TEST(Status, MakersMatchTheirCodes) {
  EXPECT_EQ(invalid_argument("").code(), Code::kInvalidArgument);
  EXPECT_EQ(not_found("").code(), Code::kNotFound);
  EXPECT_EQ(already_exists("").code(), Code::kAlreadyExists);
  EXPECT_EQ(failed_precondition("").code(), Code::kFailedPrecondition);
  EXPECT_EQ(unavailable("").code(), Code::kUnavailable);
  EXPECT_EQ(deadline_exceeded("").code(), Code::kDeadlineExceeded);
  EXPECT_EQ(data_loss("").code(), Code::kDataLoss);
  EXPECT_EQ(resource_exhausted("").code(), Code::kResourceExhausted);
  EXPECT_EQ(fenced("").code(), Code::kFenced);
  EXPECT_EQ(cancelled("").code(), Code::kCancelled);
  EXPECT_EQ(internal_error("").code(), Code::kInternal);
}

Result<int> half(int value) {
  if (value % 2 != 0) return invalid_argument("odd");
  return value / 2;
}

Status half_twice(int value, int& out) {
  SWAX_TRY(half(value));
  SWAX_ASSIGN(const int once, half(value));
  SWAX_ASSIGN(out, half(once));
  return ok();
}

TEST(Result, MacrosReturnTheFirstFailure) {
  int out = -1;
  EXPECT_TRUE(half_twice(12, out).ok());
  EXPECT_EQ(out, 3);
  EXPECT_EQ(half_twice(7, out).code(), Code::kInvalidArgument);
  EXPECT_EQ(half_twice(6, out).message(), "odd");
  EXPECT_EQ(out, 3);
}

TEST(Result, HoldsMoveOnlyValues) {
  Result<std::unique_ptr<int>> made = std::make_unique<int>(5);
  const std::unique_ptr<int> taken = std::move(made).value();
  EXPECT_EQ(*taken, 5);
}

TEST(ResultDeathTest, ValueOfAFailureAborts) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  Result<int> failed = not_found("x");
  EXPECT_DEATH(failed.value() = 1, "check failed: ok\\(\\)");
  EXPECT_DEATH(Status(Code::kOk, "x").ok(), "check failed");
}

}  // namespace
}  // namespace swax
