// Folders and damage for the storage tests. A helper that fails fails the running test.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace swax::test {

// A fresh folder, removed at the end: in the build folder, or in memory for tests that save often
// and only kill processes (nothing there is lost by a missing fsync).
class TempDir {
 public:
  enum class Place { kDisk, kMemory };
  explicit TempDir(Place place = Place::kDisk);
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A small tmpfs, unmounted at the end. mounted() is false without the right to mount.
class TinyDisk {
 public:
  TinyDisk(const std::string& folder, const std::string& options);
  ~TinyDisk();
  TinyDisk(const TinyDisk&) = delete;
  TinyDisk& operator=(const TinyDisk&) = delete;
  bool mounted() const { return mounted_; }

 private:
  std::string folder_;
  bool mounted_ = false;
};

// Writes `name` in the folder until the disk is full.
void fill_disk(const std::string& folder, const std::string& name);

std::string bytes_of(const std::string& path);
void set_bytes(const std::string& path, const std::string& bytes);
void flip_bit(const std::string& path, int64_t byte, int bit = 0);
void cut_file(const std::string& path, int64_t bytes_less);
// Every file below the folder: relative path -> content. Two calls compare what a reader changed.
std::map<std::string, std::string> tree_of(const std::string& folder);
// Files below the folder whose name starts with `prefix` and ends with `suffix`, sorted.
std::vector<std::string> files_like(const std::string& folder, const std::string& prefix,
                                    const std::string& suffix);
std::string hex_of(const std::string& bytes);
bool full_tests();  // SWAX_TEST_FULL=1: the long forms

}  // namespace swax::test
