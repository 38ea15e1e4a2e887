// Saves checkpoints until it is killed, by a failpoint or from outside.
//   storage_crash_child ROOT FIRST_STEP LAST_STEP EPOCH WORLD KEEP
// Each step: all ranks write, commit, then all but the newest KEEP go. Exit 0 when all are saved.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "proto/base/failpoint.h"
#include "tests/storage/checkpoint_fixture.h"

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  swax::failpoints_init(-1);
  const std::string root = argv[1];
  const uint64_t last = std::strtoull(argv[3], nullptr, 10);
  const uint64_t epoch = std::strtoull(argv[4], nullptr, 10);
  const uint32_t world = static_cast<uint32_t>(std::atoi(argv[5]));
  const int keep = std::atoi(argv[6]);
  for (uint64_t step = std::strtoull(argv[2], nullptr, 10); step <= last; ++step) {
    swax::Status status = swax::test::save(root, {step, epoch}, world);
    if (status.ok()) status = swax::to_status(swax::retire_checkpoints(root, keep));
    if (!status.ok()) {
      std::fprintf(stderr, "step %d: %s\n", static_cast<int>(step), status.to_string().c_str());
      return 1;
    }
  }
  return 0;
}
