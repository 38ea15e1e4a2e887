#include "tests/ops/cli_state_fixture.h"

#include <bit>

#include "coordinator/core/core.h"
#include "coordinator/journal.h"
#include "jobs/spec.h"
#include "proto/base/files.h"
#include "proto/base/hash.h"
#include "storage/checkpoint_store.h"
#include "storage/record_log.h"
#include "storage/rocks_kv.h"

namespace swax::test {
namespace {

constexpr int64_t kWallMs = 1'700'000'000'000;

std::vector<float> tensor_values(const StateOptions& options, int tensor, int64_t step) {
  std::vector<float> values;
  for (int64_t e = 0; e < state_tensors()[static_cast<size_t>(tensor)].elements(); ++e)
    values.push_back(state_value(options, tensor, e, step));
  return values;
}

struct Sums {
  uint64_t sum0 = 0, sum1 = 0;
};

Sums digest_of(const StateOptions& options, int tensor, int64_t step) {
  const uint64_t hash = xxh3_64(state_tensors()[static_cast<size_t>(tensor)].name);
  Sums sums;
  uint64_t element = 0;
  for (const float value : tensor_values(options, tensor, step)) {
    const auto bits = std::bit_cast<uint32_t>(value);
    sums.sum0 += digest_mix(0, hash, element, bits);
    sums.sum1 += digest_mix(1, hash, element, bits);
    ++element;
  }
  return sums;
}

bool is_planted(const StateOptions& options, int64_t step) {
  return options.planted.step > 0 && step >= options.planted.step;
}

pb::StepRecord step_record(const StateOptions& options, int64_t step) {
  const bool planted = options.planted_in_records && is_planted(options, step);
  pb::StepRecord record;
  record.set_step(static_cast<uint64_t>(step));
  record.set_epoch(1);
  record.set_window(step % 2 == 0 ? 16 : 64);
  // The loss of the planted step was computed before its update; the norm shows it at once.
  const double shift = planted && step > options.planted.step ? 1e-9 : 0.0;
  record.set_loss_bits(std::bit_cast<uint64_t>(5.0 / static_cast<double>(step + 1) + shift));
  record.set_norm_bits(
      std::bit_cast<uint64_t>(1.0 + static_cast<double>(step) / 64 + (planted ? 1e-9 : 0.0)));
  record.set_targets(2000);
  record.set_tokens(2048);
  record.set_step_ns(100'000'000);
  record.set_lr(static_cast<float>(options.lr));
  record.set_wall_ms(kWallMs + step);
  record.set_world_size(2);
  if (options.digests_every == 0 || step % options.digests_every != 0) return record;
  for (size_t t = 0; t < state_tensors().size(); ++t) {
    const Sums sums = digest_of(options, static_cast<int>(t), step);
    pb::TensorDigest& digest = *record.add_digests();
    digest.set_name(state_tensors()[t].name);
    digest.set_digest0(sums.sum0);
    digest.set_digest1(sums.sum1);
  }
  return record;
}

Status write_records(const StateDir& state, const StateOptions& options) {
  SWAX_TRY(make_dirs(state.records_folder("micro")));
  SWAX_ASSIGN(RecordLogWriter log, RecordLogWriter::create(state.records_path("micro", 1)));
  for (int64_t step = 1; step <= options.steps; ++step) {
    pb::RankReport report;
    *report.mutable_step() = step_record(options, step);
    SWAX_TRY(log.append(report.SerializeAsString()));
  }
  return log.sync();
}

Status write_checkpoint(const StateDir& state, const StateOptions& options, int64_t step) {
  const pb::JobSpec spec = state_spec(options);
  const std::string root = state.checkpoints_folder(spec.job().name());
  SWAX_TRY(make_dirs(root));
  const CheckpointName name{.step = static_cast<uint64_t>(step), .epoch = 1};
  std::vector<std::vector<float>> values;
  std::vector<ShardRange> ranges;
  pb::CheckpointManifest manifest;
  for (size_t t = 0; t < state_tensors().size(); ++t) {
    values.push_back(tensor_values(options, static_cast<int>(t), step));
    const Sums sums = digest_of(options, static_cast<int>(t), step);
    pb::CheckpointTensor& tensor = *manifest.add_tensors();
    tensor.set_id(static_cast<uint32_t>(t));
    tensor.set_name(state_tensors()[t].name);
    tensor.set_dtype("f32");
    for (const uint64_t size : state_tensors()[t].shape) tensor.add_shape(size);
    tensor.set_digest0(sums.sum0);
    tensor.set_digest1(sums.sum1);
  }
  for (size_t t = 0; t < values.size(); ++t)
    ranges.push_back({.tensor_id = static_cast<uint32_t>(t), .begin = 0, .data = values[t]});
  SWAX_ASSIGN(const pb::RankShard shard, write_shard({.ckpt_root = root, .name = name}, ranges));
  manifest.set_format_version(1);
  manifest.set_job(spec.job().name());
  manifest.set_step(name.step);
  manifest.set_epoch(name.epoch);
  manifest.set_world_size(1);
  manifest.set_committed_ms(kWallMs);
  *manifest.add_ranks() = shard;
  manifest.set_numeric_id(numeric_id(spec).hex());
  manifest.set_run_digest(xxh3_128(std::to_string(step)).hex());
  return commit_checkpoint(root, manifest);
}

}  // namespace

int64_t StateTensor::elements() const {
  int64_t elements = 1;
  for (const uint64_t size : shape) elements *= static_cast<int64_t>(size);
  return elements;
}

const std::vector<StateTensor>& state_tensors() {
  static const std::vector<StateTensor> kTensors = {
      {"model/embed", {6, 8}},  {"model/layers.0.attn.wq", {4, 8}}, {"model/norm", {8}},
      {"adam_m/embed", {6, 8}}, {"adam_v/embed", {6, 8}},
  };
  return kTensors;
}

float state_value(const StateOptions& options, int tensor, int64_t element, int64_t step) {
  const auto value = static_cast<float>(1 + tensor) * 0.25F + static_cast<float>(element) * 0.125F +
                     static_cast<float>(step) * 0.5F;
  const bool hit = is_planted(options, step) && options.planted.tensor == tensor &&
                   options.planted.element == element;
  return hit ? std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ 1U) : value;
}

pb::JobSpec state_spec(const StateOptions& options) {
  const Result<std::string> text =
      read_file(std::string(SWAX_SOURCE_DIR) + "/jobs/micro.toml", kSpecBytesMax);
  SWAX_CHECK(text.ok());
  SpecResult spec = load_spec(*text, "micro.toml", {{"training.steps", "40"}});
  SWAX_CHECK(spec.ok());
  spec.spec.mutable_optimizer()->set_lr(options.lr);
  return spec.spec;
}

Status add_records(const StateDir& state, std::vector<pb::JobRecord> records) {
  SWAX_ASSIGN(auto db, open_rocks_kv(state.db_folder(), KvMode::kCreate));
  SWAX_ASSIGN(const auto journal, coord::Journal::open(std::move(db)));
  coord::Durable durable;
  SWAX_TRY(journal->recover(&durable));
  const auto job = durable.jobs.find("micro");
  uint64_t number = job == durable.jobs.end() ? 0 : job->second.records;
  coord::Output output;
  for (pb::JobRecord& record : records) {
    record.set_job("micro");
    record.set_number(++number);
    record.set_wall_ms(kWallMs);
    output.records.push_back(std::move(record));
  }
  journal->add(output);
  return journal->commit();
}

void damage_record(const StateDir& state, uint64_t number) {
  auto db = open_rocks_kv(state.db_folder(), KvMode::kOpen);
  SWAX_CHECK(db.ok());
  std::string key = "rec/micro/" + std::string(8, '\0');
  key.back() = static_cast<char>(number);
  SWAX_CHECK((*db)->write({{.key = key, .value = "\xff\xff"}}, true).ok());
}

Status make_state(const std::string& folder, const StateOptions& options) {
  SWAX_TRY(make_dirs(folder));
  const StateDir state(folder);
  SWAX_TRY(make_dirs(state.coordinator_folder()));
  std::vector<pb::JobRecord> records(4);
  pb::JobCreated& created = *records[0].mutable_created();
  *created.mutable_spec() = state_spec(options);
  created.set_numeric_id(numeric_id(created.spec()).hex());
  created.set_spec_hash(spec_hash(created.spec()).hex());
  for (uint64_t epoch : {1, 2}) {
    pb::AttemptPlaced& placed = *records[epoch == 1 ? 1 : 3].mutable_placed();
    placed.set_epoch(epoch);
    placed.set_lead("local");
    placed.add_ranks()->set_node("local");
  }
  pb::AttemptFinished& finished = *records[2].mutable_finished();
  finished.set_epoch(1);
  finished.set_result("signal");
  finished.set_first_rank(1);
  finished.set_signal(9);
  finished.set_step(30);
  finished.set_reason("rank 1 was killed by signal 9");
  SWAX_TRY(add_records(state, std::move(records)));
  SWAX_TRY(write_records(state, options));
  for (const int64_t step : options.checkpoints) SWAX_TRY(write_checkpoint(state, options, step));
  return ok();
}

}  // namespace swax::test
