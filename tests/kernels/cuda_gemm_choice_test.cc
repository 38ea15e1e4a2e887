// Goal: the form of a product is a line of text that another process replays exactly. Method: lines
// are written, read and spoilt; on a device one backend chooses, a second adopts what it said and
// must compute the same bits with the same forms. Skipped with the reason where there is no device.
#include "kernels/cuda/gemm_choice.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "kernels/backend.h"
#include "kernels/cuda/open.h"
#include "proto/base/text.h"
#include "tests/kernels/cuda_device.h"
#include "tests/support/tensor_check.h"

namespace swax::test {
namespace {

using cuda::GemmChoice;
using cuda::GemmLine;

GemmLine some_line() {
  return {.shape = {.m = 512,
                    .n = 768,
                    .k = 256,
                    .a_stride = 256,
                    .b_stride = 300,
                    .c_stride = 768,
                    .in = DType::kBF16,
                    .out = DType::kF32,
                    .trans_b = true,
                    .accumulate = true,
                    .align = 256},
          .choice = {.form = GemmChoice::Form::kAlgorithm,
                     .attributes = {66, 20, 35, 1, 0, 1, 2, 3, 4}}};
}

TEST(CudaGemmChoice, ALineIsReadAsItWasWritten) {
  GemmLine line = some_line();
  EXPECT_EQ(cuda::choice_line(line),
            "m=512 n=768 k=256 a_stride=256 b_stride=300 c_stride=768 in=2 out=4 trans_a=0 "
            "trans_b=1 add=1 align=256: algorithm=66 tile=20 stages=35 split_k=1 reduction=0 "
            "swizzle=1 custom=2 inner=3 cluster=4");
  for (const auto form :
       {GemmChoice::Form::kAlgorithm, GemmChoice::Form::kFirst, GemmChoice::Form::kPlain}) {
    if (form != GemmChoice::Form::kAlgorithm) line.choice = {.form = form};
    const auto read = cuda::parse_choice_line(cuda::choice_line(line));
    ASSERT_TRUE(read.ok()) << read.status().to_string();
    EXPECT_EQ(read->shape, line.shape);
    EXPECT_EQ(read->choice, line.choice);
  }
}

TEST(CudaGemmChoice, RefusesOtherLines) {
  const std::string good = cuda::choice_line(some_line());
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"m=512 ", ""},
           {"m=512", "m=512x"},
           {"m=512", "M=512"},
           {"in=2", "in=8"},
           {"trans_a=0", "trans_a=2"},
           {" tile=20", ""},
           {"cluster=4", "cluster=4 more=1"},
           {": ", " "},
           {"algorithm=66 tile=20 stages=35 split_k=1 reduction=0 swizzle=1 custom=2 inner=3 "
            "cluster=4",
            "best heuristic"}}) {
    std::string bad = good;
    bad.replace(bad.find(from), from.size(), to);
    EXPECT_EQ(cuda::parse_choice_line(bad).status().code(), Code::kFailedPrecondition) << bad;
  }
}

struct Rank {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
};
Rank open_rank() {
  Rank rank;
  auto backend = cuda::open_cuda_backend(0);
  SWAX_CHECK(backend.ok());
  rank.backend = std::move(backend).value();
  auto stream = rank.backend->make_stream();
  SWAX_CHECK(stream.ok());
  rank.stream = std::move(stream).value();
  return rank;
}

// Products of a layer, one of no algorithm's alignment, and one of f32.
struct Product {
  DType in, out;
  int64_t m, n, k;
  bool trans_a, trans_b, accumulate;
};
const Product kProducts[] = {{DType::kBF16, DType::kBF16, 2048, 1024, 512, false, true, false},
                             {DType::kBF16, DType::kBF16, 2048, 512, 1024, false, false, true},
                             {DType::kBF16, DType::kF32, 1024, 512, 2048, true, false, false},
                             {DType::kBF16, DType::kF32, 1024, 512, 2048, true, false, true},
                             {DType::kBF16, DType::kBF16, 333, 77, 129, false, true, false},
                             {DType::kF32, DType::kF32, 256, 128, 64, false, true, false}};

class Operands {
 public:
  explicit Operands(const Product& p)
      : a_("a", p.in, {p.trans_a ? p.k : p.m, p.trans_a ? p.m : p.k},
           random_normal(1, "a", p.m * p.k)),
        b_("b", p.in, {p.trans_b ? p.n : p.k, p.trans_b ? p.k : p.n},
           random_normal(1, "b", p.n * p.k)),
        c_("c", p.out, {p.m, p.n}, random_normal(1, "c", p.m * p.n)) {
    args = {.a = a_.tensor(),
            .b = b_.tensor(),
            .c = c_.tensor(),
            .trans_a = p.trans_a,
            .trans_b = p.trans_b,
            .accumulate = p.accumulate};
  }
  std::vector<std::byte> result() const { return c_.bytes(); }
  GemmArgs args;

 private:
  DeviceTensor a_, b_, c_;
};

std::vector<std::byte> result_of(Rank& rank, const Product& p) {
  Operands x(p);
  const Status s = rank.backend->gemm(*rank.stream, x.args);
  EXPECT_TRUE(s.ok()) << s.to_string();
  EXPECT_TRUE(rank.backend->sync(*rank.stream).ok());
  return x.result();
}

TEST(CudaGemmChoice, AnotherBackendReplaysTheForms) {
  SWAX_NEED_DEVICE();
  Rank first = open_rank(), second = open_rank();
  std::vector<std::unique_ptr<Operands>> operands;
  std::vector<GemmArgs> products;
  for (const Product& p : kProducts) {
    operands.push_back(std::make_unique<Operands>(p));
    products.push_back(operands.back()->args);
  }
  const auto chosen = first.backend->choose(*first.stream, products);
  ASSERT_TRUE(chosen.ok()) << chosen.status().to_string();
  std::printf("%s", chosen->c_str());
  // What a bf16 product of a layer runs with is described by its attributes.
  EXPECT_NE(chosen->find("m=2048 n=1024 k=512"), std::string::npos);
  EXPECT_EQ(chosen->find("first heuristic"), std::string::npos);
  ASSERT_TRUE(second.backend->adopt(*chosen).ok());
  const int64_t before = second.backend->allocations();
  const auto again = second.backend->choose(*second.stream, products);
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(*again, *chosen);
  for (const Product& p : kProducts) EXPECT_EQ(result_of(first, p), result_of(second, p));
  EXPECT_EQ(second.backend->allocations(), before);  // nothing was chosen by time
}

TEST(CudaGemmChoice, RefusesAnAlgorithmThatIsNotThere) {
  SWAX_NEED_DEVICE();
  Rank rank = open_rank();
  GemmLine line = some_line();
  line.shape.b_stride = 256;
  line.choice.attributes[0] = 9999;
  const Status s = rank.backend->adopt(cuda::choice_line(line) + "\n");
  EXPECT_EQ(s.code(), Code::kFailedPrecondition);
  EXPECT_NE(s.message().find("no such algorithm"), std::string::npos) << s.message();
  EXPECT_NE(s.message().find("algorithm=9999"), std::string::npos) << s.message();
}

}  // namespace
}  // namespace swax::test
