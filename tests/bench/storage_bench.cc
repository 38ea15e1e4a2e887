// checkpoint_write_bench [--mib N] [--dir DIR] [--rounds R]
// Writes N MiB (default 4096) through write_shard, without its reading back, and the same bytes by
// O_DIRECT writes of 8 MiB with one fsync, in turns, and prints both rates (medians) and the median
// of the ratios of the rounds. Aim: at least 0.8. Both end with everything on the disk.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "proto/base/clock.h"
#include "proto/base/files.h"
#include "proto/base/hash.h"
#include "proto/base/ids.h"
#include "proto/base/text.h"
#include "storage/checkpoint_store.h"
#include "storage/rocks_kv.h"

namespace swax {
namespace {

constexpr int64_t kPoolBytes = 128 * kMiB;  // written again and again; larger than any cache
constexpr int64_t kWriteBytes = 8 * kMiB;

struct Request {
  int64_t mib = 4096;
  std::string dir = ".";
  int64_t rounds = 5;
};

bool parse(int argc, char** argv, Request* request) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view key = argv[i];
    if (key == "--mib") {
      request->mib = std::strtoll(argv[i + 1], nullptr, 10);
    } else if (key == "--rounds") {
      request->rounds = std::strtoll(argv[i + 1], nullptr, 10);
    } else if (key == "--dir") {
      request->dir = argv[i + 1];
    } else {
      return false;
    }
  }
  return argc % 2 == 1 && request->rounds > 0 && request->mib >= 8 && request->mib % 8 == 0;
}

// Page-aligned, as O_DIRECT wants it, filled with bits that no layer can compress.
std::span<float> make_pool() {
  void* const memory = mmap(nullptr, static_cast<size_t>(kPoolBytes), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  SWAX_CHECK(memory != MAP_FAILED);
  uint64_t* const words = static_cast<uint64_t*>(memory);
  for (uint64_t i = 0; i < kPoolBytes / sizeof(uint64_t); ++i) words[i] = mix_bits(i + 1);
  return {static_cast<float*>(memory), static_cast<size_t>(kPoolBytes) / sizeof(float)};
}

Status write_store(const Request& request, std::span<const float> pool) {
  std::vector<ShardRange> ranges;
  int64_t left = request.mib * kMiB;
  for (uint32_t tensor = 0; left > 0; ++tensor) {
    const int64_t bytes = std::min(left, kPoolBytes);
    ranges.push_back({tensor, 0, pool.first(static_cast<size_t>(bytes) / sizeof(float))});
    left -= bytes;
  }
  return to_status(write_shard(
      {.ckpt_root = join_path(request.dir, "ckpt"), .name = {1, 1}, .read_back = false}, ranges));
}

Status write_raw(const Request& request, std::span<const float> pool) {
  const std::string path = join_path(request.dir, "raw");
  const Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0644));
  if (!fd.valid()) return internal_error("open " + path + ": " + std::strerror(errno));
  const char* const bytes = reinterpret_cast<const char*>(pool.data());
  for (int64_t at = 0; at < request.mib * kMiB; at += kWriteBytes) {
    if (write(fd.get(), bytes + at % kPoolBytes, kWriteBytes) != kWriteBytes) {
      return internal_error("write " + path + ": " + std::strerror(errno));
    }
  }
  return fsync(fd.get()) == 0 ? ok() : internal_error("fsync " + path);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Of this process and all its threads, in seconds.
double cpu_seconds() {
  rusage usage{};
  SWAX_CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Rate {
  double gb_per_s = 0.0;
  double cpu_s_per_gib = 0.0;
};

template <typename Write>
Result<Rate> measure(const Request& request, Write write) {
  SystemClock clock;
  const double cpu = cpu_seconds();
  const int64_t begin = clock.monotonic_ns();
  SWAX_TRY(write());
  const int64_t ns = clock.monotonic_ns() - begin;
  const double bytes = static_cast<double>(request.mib * kMiB);
  return Rate{bytes / static_cast<double>(ns), (cpu_seconds() - cpu) * kGiB / bytes};
}

Status run(const Request& request) {
  const std::span<const float> pool = make_pool();
  SWAX_TRY(make_dirs(request.dir));
  std::vector<double> store;
  std::vector<double> raw;
  std::vector<double> ratios;
  for (int64_t round = 0; round < request.rounds; ++round) {
    Rate rates[2];
    for (int64_t turn = 0; turn < 2; ++turn) {
      const int64_t which = (round + turn) % 2;  // neither is always first
      SWAX_ASSIGN(rates[which], measure(request, [&] {
                    return which == 0 ? write_store(request, pool) : write_raw(request, pool);
                  }));
      SWAX_TRY(remove_tree(join_path(request.dir, "ckpt")));
      SWAX_TRY(remove_tree(join_path(request.dir, "raw")));
    }
    const double ratio = rates[0].gb_per_s / rates[1].gb_per_s;
    store.push_back(rates[0].gb_per_s);
    raw.push_back(rates[1].gb_per_s);
    ratios.push_back(ratio);
    std::printf("round %d: checkpoint %.2f GB/s %.2f CPU s/GiB, raw %.2f GB/s %.2f, ratio %.2f\n",
                static_cast<int>(round), rates[0].gb_per_s, rates[0].cpu_s_per_gib,
                rates[1].gb_per_s, rates[1].cpu_s_per_gib, ratio);
  }
  std::printf("checkpoint_write_gb_per_s %.3f\n", median(store));
  std::printf("raw_write_gb_per_s %.3f\n", median(raw));
  std::printf("ratio %.3f (aim: at least 0.8)\n", median(ratios));
  return ok();
}

}  // namespace
}  // namespace swax

int main(int argc, char** argv) {
  swax::configure_malloc_for_storage();
  swax::Request request;
  if (!swax::parse(argc, argv, &request)) {
    std::fprintf(stderr,
                 "usage: checkpoint_write_bench [--mib N] [--dir DIR] [--rounds R]\n"
                 "N: a multiple of 8\n");
    return 2;
  }
  const swax::Status status = swax::run(request);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
