// Builds a data set in a process of its own, for the tests that kill it, starve it or measure its
// memory. data_build_tool STORE NAME RULE FILE_BYTES_MAX INPUT...   prints the digest, or the
// status and exits with 1. FILE_BYTES_MAX: largest file that the process may write (0: any), which
// stands for a full disk.
#include <signal.h>
#include <sys/resource.h>

#include <charconv>
#include <cstdio>
#include <string>

#include "proto/base/failpoint.h"
#include "worker/data/build.h"

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  swax::failpoints_init(-1);
  const std::string limit = argv[4];
  rlim_t bytes_max = 0;
  std::from_chars(limit.data(), limit.data() + limit.size(), bytes_max);
  if (bytes_max > 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit file_size{bytes_max, bytes_max};
    if (setrlimit(RLIMIT_FSIZE, &file_size) != 0) return 2;
  }
  swax::BuildOptions options;
  options.name = argv[2];
  options.documents = argv[3];
  options.inputs.assign(argv + 5, argv + argc);
  const swax::Result<swax::pb::DatasetManifest> built = swax::build_dataset(options, argv[1]);
  std::printf("%s\n", built.ok() ? built->digest().c_str() : built.status().to_string().c_str());
  return built.ok() ? 0 : 1;
}
