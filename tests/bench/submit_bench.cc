// How many jobs a second one client can submit, each stored before it is acknowledged, beside what
// the disk does at all: one small append and fdatasync after the other.
//   submit_bench FOLDER [SUBMITS]
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <vector>

#include "coordinator/server.h"
#include "jobs/spec.h"
#include "proto/base/clock.h"
#include "proto/base/files.h"
#include "proto/base/text.h"
#include "proto/wire/channel.h"

namespace swax {
namespace {

struct Times {
  std::vector<double> ms;
  double rate() const {
    double sum = 0;
    for (const double t : ms) sum += t;
    return 1000.0 * static_cast<double>(ms.size()) / sum;
  }
  double quantile(double q) {
    std::sort(ms.begin(), ms.end());
    return ms[static_cast<size_t>(q * static_cast<double>(ms.size() - 1))];
  }
};

template <typename Call>
Times measure(int count, const Call& call) {
  SystemClock clock;
  Times times;
  for (int i = 0; i < count; ++i) {
    const int64_t begin = clock.monotonic_ns();
    call(i);
    times.ms.push_back(static_cast<double>(clock.monotonic_ns() - begin) * 1e-6);
  }
  return times;
}

void print(const char* what, Times times) {
  std::printf("%-28s %10s/s   median %s ms   99 %% %s ms\n", what,
              fixed_text(times.rate(), 0).c_str(), fixed_text(times.quantile(0.5), 2).c_str(),
              fixed_text(times.quantile(0.99), 2).c_str());
}

Times raw_syncs(const std::string& folder, int count) {
  const std::string path = join_path(folder, "raw");
  const Fd fd(::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_APPEND | O_CLOEXEC, 0644));
  const std::string block(2048, 'x');
  return measure(count, [&](int) {
    if (::write(fd.get(), block.data(), block.size()) < 0 || ::fdatasync(fd.get()) != 0)
      std::perror("raw");
  });
}

bool submit(ClientChannel& client, const pb::JobSpec& spec, int number) {
  pb::Envelope envelope;
  char id[40];
  std::snprintf(id, sizeof id, "%032x", static_cast<unsigned>(number) + 1);
  envelope.set_request_id(id);
  pb::JobSpec& mine = *envelope.mutable_request()->mutable_submit()->mutable_spec();
  mine = spec;
  mine.mutable_job()->set_name("job-" + to_text(number));
  client.send(envelope);
  for (;;) {
    for (const pb::Envelope& answer : client.poll(1000, 4))
      if (answer.request_id() == id) return answer.reply().code() == 0;
  }
}

int run(const std::string& folder, int count) {
  const Result<std::string> text =
      read_file(std::string(SWAX_SOURCE_DIR) + "/jobs/quickstart.toml", kSpecBytesMax);
  if (!text.ok() || !make_dirs(folder).ok()) return 2;
  const pb::JobSpec spec = load_spec(*text, "quickstart.toml", {}).spec;
  coord::ServerOptions options;
  options.state = join_path(folder, "state");
  options.listen = "tcp://127.0.0.1:0";
  options.timing.jobs_active_max = 1000000;
  const auto server = coord::Server::open(options);
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", server.status().to_string().c_str());
    return 1;
  }
  const auto client = ClientChannel::connect((*server)->address());
  if (!client.ok()) return 1;
  int failed = 0;
  print("raw append and fdatasync", raw_syncs(folder, count));
  print("submit, one client, durable",
        measure(count, [&](int i) { failed += submit(**client, spec, i) ? 0 : 1; }));
  if (failed > 0) std::fprintf(stderr, "%d submits failed\n", failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace swax

int main(int argc, char** argv) {
  int count = 2000;
  if (argc > 2) std::from_chars(argv[2], argv[2] + std::strlen(argv[2]), count);
  if (argc < 2 || count < 1) {
    std::fprintf(stderr, "usage: submit_bench FOLDER [SUBMITS]\n");
    return 2;
  }
  return swax::run(argv[1], count);
}
