// A fresh folder for one test, removed at the end of the scope, and a scoped environment variable.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>

#include "proto/base/files.h"

namespace swax {

class ScratchDir {
 public:
  ScratchDir() {
    std::string name = ::testing::TempDir() + "swax-base-XXXXXX";
    SWAX_CHECK(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~ScratchDir() { EXPECT_TRUE(remove_tree(path_).ok()); }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return join_path(path_, name); }

 private:
  std::string path_;
};

class ScopedEnv {
 public:
  ScopedEnv(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~ScopedEnv() { unsetenv(name_); }
  ScopedEnv(const ScopedEnv&) = delete;
  ScopedEnv& operator=(const ScopedEnv&) = delete;

 private:
  const char* name_;
};

}  // namespace swax
