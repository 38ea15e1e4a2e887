#include "tests/kernels/op_check.h"

namespace swax::test {
Rig open_rig(int compute_threads, bool plain_gemm) {
  BackendOptions options;
  options.compute_threads = compute_threads;
  options.plain_gemm = plain_gemm;
  Result<std::unique_ptr<Backend>> backend = open_backend(options);
  SWAX_CHECK(backend.ok());
  Rig rig;
  rig.backend = std::move(backend).value();
  Result<std::unique_ptr<Stream>> stream = rig.backend->make_stream();
  SWAX_CHECK(stream.ok());
  rig.stream = std::move(stream).value();
  return rig;
}

void check_op(const RunOp& run, const std::vector<Want>& wants) {
  for (const bool plain : {false, true}) {
    SCOPED_TRACE(plain ? "plain loops" : "BLAS");
    Outputs first;
    for (const int threads : {1, 2, 3}) {
      SCOPED_TRACE("compute threads " + std::to_string(threads));
      Rig rig = open_rig(threads, plain);
      const Outputs got = run(rig);
      if (threads == 1) {
        EXPECT_EQ(got.size(), wants.size());
        for (const Output& o : got) {
          const Want& w = want_of(wants, o.name);
          EXPECT_TRUE(tensor_near(o.name, o.values, w.values, w.bound));
        }
        first = got;
        continue;
      }
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(same_bits(got[i].name, got[i].values, first[i].values));
      }
    }
  }
}

}  // namespace swax::test
