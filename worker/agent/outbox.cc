#include "worker/agent/outbox.h"

#include <stdlib.h>
#include <sys/random.h>

#include <algorithm>
#include <charconv>

#include "proto/base/clock.h"
#include "proto/base/hash.h"
#include "proto/base/text.h"
#include "storage/rocks_kv.h"

namespace swax {
namespace {

constexpr std::string_view kNode = "meta/node", kStateId = "meta/state_id",
                           kIncarnation = "meta/incarnation", kNextReport = "meta/next_report",
                           kAccepted = "accepted/", kReport = "report/";

std::string report_key(uint64_t index) {
  std::string key(kReport);
  for (int shift = 56; shift >= 0; shift -= 8) key += static_cast<char>(index >> shift & 255);
  return key;
}

Result<uint64_t> number(std::string_view key, std::string_view text) {
  uint64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec == std::errc{} && end.ptr == text.data() + text.size()) return value;
  return data_loss("worker state: " + std::string(key) + " = " + printable(text, 40) +
                   " is no number");
}

// 0 when there is none.
Result<uint64_t> stored_number(Kv& kv, std::string_view key) {
  const Result<std::string> text = kv.get(key);
  if (!text.ok() && text.status().code() == Code::kNotFound) return uint64_t{0};
  if (!text.ok()) return text.status();
  return number(key, *text);
}

}  // namespace

Result<std::unique_ptr<Outbox>> Outbox::open(const std::string& folder, const std::string& node) {
  SWAX_TRY(make_dirs(folder));
  const std::unique_ptr<char, decltype(&::free)> real(::realpath(folder.c_str(), nullptr), &::free);
  if (!real) return invalid_argument("state folder " + printable(folder, 200) + " cannot be used");
  const std::string root = real.get();
  Result<Fd> lock = lock_file(join_path(root, "lock"));
  if (!lock.ok() && lock.status().code() == Code::kFailedPrecondition)
    return failed_precondition("another worker runs with state " + root +
                               ": stop it first, or give another --state");
  if (!lock.ok()) return lock.status();
  std::unique_ptr<Outbox> outbox(new Outbox(root, std::move(lock).value()));
  SWAX_TRY(outbox->start(node));
  return outbox;
}

Status Outbox::start(const std::string& node) {
  SWAX_TRY(make_dirs(attempts_folder()));
  SWAX_ASSIGN(kv_, open_rocks_kv(join_path(folder_, "kv"), KvMode::kCreate));
  const Result<std::string> known = kv_->get(kNode);
  if (known.ok() && *known != node)
    return failed_precondition("state " + folder_ + " belongs to worker " + printable(*known, 64) +
                               ": give that --name, or another --state");
  if (!known.ok() && known.status().code() != Code::kNotFound) return known.status();
  if (known.ok()) {
    SWAX_ASSIGN(state_id_, kv_->get(kStateId));
  } else {
    Hash128 bits;
    SWAX_CHECK(::getrandom(&bits, sizeof bits, 0) == static_cast<ssize_t>(sizeof bits));
    state_id_ = bits.hex();
  }
  SWAX_ASSIGN(const uint64_t before, stored_number(*kv_, kIncarnation));
  SystemClock clock;
  incarnation_ = std::max(before + 1, static_cast<uint64_t>(clock.wall_ms()));
  return kv_->write({{.key = std::string(kNode), .value = node},
                     {.key = std::string(kStateId), .value = state_id_},
                     {.key = std::string(kIncarnation), .value = to_text(incarnation_)}},
                    true);
}

Status Outbox::load(agent::State* state) {
  SWAX_ASSIGN(const uint64_t next, stored_number(*kv_, kNextReport));
  state->next_report = std::max<uint64_t>(next, 1);
  Status problem = ok();
  SWAX_TRY(kv_->scan(kAccepted, "", [&](std::string_view key, std::string_view value) {
    const Result<uint64_t> epoch = number(key, value);
    if (epoch.ok())
      state->accepted[std::string(key.substr(kAccepted.size()))] = *epoch;
    else
      problem = epoch.status();
    return problem.ok();
  }));
  SWAX_TRY(problem);
  SWAX_TRY(kv_->scan(kReport, "", [&](std::string_view key, std::string_view value) {
    pb::AttemptReport report;
    if (!report.ParseFromArray(value.data(), static_cast<int>(value.size())) ||
        key != report_key(report.index())) {
      problem = data_loss("worker state: a report cannot be read");
      return false;
    }
    stored_.insert(report.index());
    state->outbox[report.index()] = std::move(report);
    return true;
  }));
  return problem;
}

Status Outbox::save(const agent::SaveOutbox& save) {
  std::vector<KvWrite> batch;
  std::set<uint64_t> stored = stored_;
  const auto drop = [&](uint64_t index) {
    if (stored.erase(index) == 1) batch.push_back({.key = report_key(index), .value = {}});
  };
  while (!stored.empty() && *stored.begin() <= save.drop_through) drop(*stored.begin());
  for (const uint64_t index : save.drop) drop(index);
  for (const pb::AttemptReport& report : save.add) {
    batch.push_back({.key = report_key(report.index()), .value = report.SerializeAsString()});
    stored.insert(report.index());
  }
  if (save.next_report > 0)
    batch.push_back({.key = std::string(kNextReport), .value = to_text(save.next_report)});
  if (!save.job.empty())
    batch.push_back(
        {.key = std::string(kAccepted) + save.job, .value = to_text(save.accepted_epoch)});
  if (batch.empty()) return ok();
  SWAX_TRY(kv_->write(batch, !save.add.empty() || !save.job.empty()));
  stored_ = std::move(stored);
  return ok();
}

}  // namespace swax
