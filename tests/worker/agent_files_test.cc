#include <gtest/gtest.h>

#include "proto/base/files.h"
#include "tests/proto/scratch_dir.h"
#include "worker/agent/attempt_files.h"

namespace swax {
namespace {

TEST(TailOf, IsTheEndOfALogOfAnyLength) {
  const ScratchDir dir;
  const std::string path = dir / "log";
  EXPECT_EQ(tail_of(path), "");
  ASSERT_TRUE(write_atomic(path, "").ok());
  EXPECT_EQ(tail_of(path), "");
  ASSERT_TRUE(write_atomic(path, "short").ok());
  EXPECT_EQ(tail_of(path), "short");
  ASSERT_TRUE(write_atomic(path, std::string(16 << 20, 'x') + "the end").ok());
  const std::string tail = tail_of(path);
  EXPECT_TRUE(tail.ends_with("xthe end")) << tail.size();
  EXPECT_LT(tail.size(), 1000U);
}

}  // namespace
}  // namespace swax
