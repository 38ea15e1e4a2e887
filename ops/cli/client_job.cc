#include "ops/cli/client_job.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <optional>

#include "ops/cli/run_result.h"
#include "proto/base/clock.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr size_t kColumns = 80, kValueColumn = 13;
constexpr size_t kTextBytesMax = 1000;

// Zero bits stand for "never reported": no loss and no bits-per-byte of a text is exactly 0.
std::optional<double> reported(uint64_t bits) {
  const double value = std::bit_cast<double>(bits);
  if (bits == 0 || !std::isfinite(value)) return std::nullopt;
  return value;
}

Json number(std::optional<double> value) { return value ? Json(*value) : Json(); }
Json word(const std::string& value) { return value.empty() ? Json() : Json(value); }
Json time(int64_t wall_ms) {
  return wall_ms == 0 ? Json() : Json(std::string(utc_text(wall_ms).text));
}

std::string state_text(const pb::JobStatus& job) {
  const bool bad = job.state() == "FAILED" || job.state() == "CANCELLED" || job.state() == "HELD";
  std::string text = coloured(one_line(job.state(), 20), bad ? Colour::kBad : Colour::kGood);
  if (!job.reason().empty()) text += " (" + one_line(job.reason()) + ")";
  return text;
}

std::string progress_text(const pb::JobStatus& job) {
  std::string text = "step " + group_digits(static_cast<int64_t>(job.step())) + " of " +
                     group_digits(static_cast<int64_t>(job.total_steps()));
  if (job.total_steps() > 0)
    text +=
        " (" +
        fixed_text(100.0 * static_cast<double>(job.step()) / static_cast<double>(job.total_steps()),
                   1) +
        " %)";
  if (!job.phase().empty()) text += ", " + one_line(job.phase(), 40);
  return text;
}

std::string checkpoint_text(const pb::JobStatus& job) {
  if (job.checkpoint_ms() == 0) return "none yet";
  const int64_t age_ms = std::max<int64_t>(0, job.wall_ms() - job.checkpoint_ms());
  return "step " + group_digits(static_cast<int64_t>(job.checkpoint_step())) + ", " +
         duration_text(age_ms) + " ago";
}

std::string places_text(const pb::JobStatus& job) {
  std::map<std::string, std::string> ranks_of;  // node -> "0, 1"
  for (const pb::RankPlace& place : job.ranks()) {
    std::string& ranks = ranks_of[place.node()];
    ranks += (ranks.empty() ? "" : ", ") + to_text(uint64_t{place.rank()});
  }
  std::string text;
  for (const auto& [node, ranks] : ranks_of)
    text += (text.empty() ? "" : "; ") + one_line(node, 64) + ": rank " + ranks;
  return text;
}

std::string next_action(const pb::JobStatus& job) {
  const std::string name = one_line(job.job(), 64);
  if (job.state() == "SUCCEEDED") return "nothing; swax checkpoints list " + name;
  if (job.state() == "FAILED")
    return "swax logs " + name + " tells more; swax resume " + name +
           " goes on from the last checkpoint";
  if (job.state() == "CANCELLED") return "swax resume " + name + " goes on from its checkpoint";
  if (job.state() == "HELD") return "restore the coordinator's state, or submit under another name";
  if (job.reason() == "WaitingForCapacity") return "start more workers (swax worker), or cancel it";
  if (job.reason() == "WaitingForTime") return "nothing; it goes on in the next Slurm job";
  if (job.state() == "QUEUED") return "nothing; it starts as soon as slots are free";
  if (job.state() == "BACKOFF")
    return "nothing; swax events " + name + " tells why the last attempt ended";
  return "nothing; swax watch " + name + " follows it";
}

std::string cut(std::string text, size_t most) {
  if (text.size() <= most) return text;
  text.resize(most < 2 ? most : most - 2);
  return most < 2 ? text : text + "..";
}

}  // namespace

int exit_code_of_job(const pb::JobStatus& job) {
  if (job.state() == "SUCCEEDED") return kExitOk;
  if (job.state() == "FAILED") return kExitJobFailed;
  if (job.state() == "CANCELLED") return kExitJobCancelled;
  if (job.state() == "EXPIRED") return kExitJobExpired;
  return -1;
}

std::string text_row(const std::string& name, const std::string& value) {
  std::string text =
      name + std::string(name.size() < kValueColumn ? kValueColumn - name.size() : 1, ' ');
  size_t column = text.size();
  const size_t begin = column;
  for (const std::string_view word : split(value, ' ')) {
    if (column > begin && column + 1 + word.size() > kColumns) {
      text += "\n" + std::string(kValueColumn, ' ');
      column = kValueColumn;
    } else if (column > begin) {
      text += ' ';
      ++column;
    }
    text += word;
    column += word.size();
  }
  return text + "\n";
}

std::string job_text(const pb::JobStatus& job, const pb::EventRecord* last) {
  std::string text = text_row("job", one_line(job.job(), 64));
  text += text_row("state", state_text(job));
  text += text_row("now", one_line(job.message(), kTextBytesMax));
  text += text_row("progress", progress_text(job));
  if (const auto loss = reported(job.loss_bits())) {
    std::string value = fixed_text(*loss, 4) + " nats per token";
    if (job.window() > 0) value += ", window " + to_text(uint64_t{job.window()});
    text += text_row("loss", value);
  }
  if (const auto bpb = reported(job.validation_bpb_bits()))
    text += text_row("validation", fixed_text(*bpb, 4) + " bits per byte");
  else if (job.state() == "SUCCEEDED")
    text += text_row("validation", "none: too little held-out text");
  if (job.tokens_per_s() > 0)
    text += text_row("speed", group_digits(static_cast<int64_t>(job.tokens_per_s())) + " tokens/s");
  if (job.ranks_size() > 0) text += text_row("ranks", places_text(job));
  text += text_row("checkpoint", checkpoint_text(job));
  text += text_row("attempts", to_text(job.epoch()) + ", restarts " + to_text(job.restarts()));
  if (!job.digest().empty()) text += text_row("digest", one_line(job.digest(), 40));
  if (!job.store_path().empty()) text += text_row("files", one_line(job.store_path(), 1000));
  if (last != nullptr)
    text += text_row("last event", std::string(utc_text(last->wall_ms()).text) + " " +
                                       one_line(last->kind(), 40) +
                                       (last->text().empty() ? "" : ": ") + one_line(last->text()));
  return text + text_row("do", next_action(job));
}

Json job_json(const pb::JobStatus& job) {
  Json checkpoint;
  if (job.checkpoint_ms() > 0) {
    checkpoint = Json::object();
    checkpoint.set("step", job.checkpoint_step()).set("committed_at", time(job.checkpoint_ms()));
  }
  Json ranks = Json::array();
  for (const pb::RankPlace& place : job.ranks())
    ranks.push(Json::object().set("rank", place.rank()).set("node", place.node()));
  Json json = Json::object();
  json.set("schema_version", kClientSchemaVersion)
      .set("job", job.job())
      .set("name", job.job())
      .set("state", job.state())
      .set("reason", word(job.reason()))
      .set("step", job.step())
      .set("total_steps", job.total_steps())
      .set("loss", number(reported(job.loss_bits())))
      .set("validation_bpb", number(reported(job.validation_bpb_bits())))
      .set("tokens_per_s", job.tokens_per_s() > 0 ? Json(job.tokens_per_s()) : Json())
      .set("digest", word(job.digest()))
      .set("attempt", job.epoch())
      .set("restarts", job.restarts())
      .set("checkpoint", checkpoint)
      .set("state_dir", Json())
      .set("message", job.message())
      .set("phase", word(job.phase()))
      .set("window", job.window() > 0 ? Json(job.window()) : Json())
      .set("priority", job.priority())
      .set("submitted_at", time(job.submitted_ms()))
      .set("ranks", ranks)
      .set("numeric_id", word(job.numeric_id()))
      .set("events", job.events())
      .set("store_path", word(job.store_path()));
  return json;
}

std::string job_table(const std::vector<pb::JobStatus>& jobs) {
  constexpr size_t kNameMin = 12, kReasonMin = 6, kReasonGood = 18, kGaps = 2 * 6;
  std::vector<std::vector<std::string>> rows;
  std::vector<size_t> widths = {3, 5, 4, 4, 5, 3, 6};  // of the heads
  for (const pb::JobStatus& job : jobs) {
    const auto loss = reported(job.loss_bits());
    std::vector<std::string> row = {
        one_line(job.job(), 64),
        one_line(job.state(), 9),
        to_text(job.step()) + "/" + to_text(job.total_steps()),
        loss ? fixed_text(*loss, 4) : "",
        job.tokens_per_s() > 0 ? to_text(static_cast<int64_t>(job.tokens_per_s())) : "",
        to_text(job.epoch()),
        one_line(job.reason())};
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
    rows.push_back(std::move(row));
  }
  size_t fixed = kGaps;
  for (size_t c = 1; c + 1 < widths.size(); ++c) fixed += widths[c];
  const size_t least = kNameMin + kReasonMin;
  const size_t left = fixed + least < kColumns ? kColumns - fixed : least;
  // A reason has room for one of our words before a name is cut, then what names leave.
  const size_t beside_names = left - std::min(left, widths[0]);
  const size_t reason = std::clamp(std::max(std::min(widths[6], kReasonGood), beside_names),
                                   kReasonMin, left - kNameMin);
  TextTable table({{"JOB", TextTable::Align::kLeft},
                   {"STATE", TextTable::Align::kLeft},
                   {"STEP"},
                   {"LOSS"},
                   {"TOK/S"},
                   {"ATT"},
                   {"REASON", TextTable::Align::kLeft}});
  for (std::vector<std::string>& row : rows) {
    row[0] = cut(row[0], left - reason);
    row[6] = cut(row[6], reason);
    table.add(std::move(row));
  }
  return table.text();
}

std::string job_line(const pb::JobStatus& job) {
  std::string text = one_line(job.job(), 64) + " " + one_line(job.state(), 20);
  text += "  step " + to_text(job.step()) + "/" + to_text(job.total_steps());
  if (const auto loss = reported(job.loss_bits())) text += "  loss " + fixed_text(*loss, 4);
  return text + "  " + one_line(job.message());
}

}  // namespace swax
