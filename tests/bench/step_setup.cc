#include "tests/bench/step_setup.h"

#include <cstdio>

#include "proto/base/files.h"
#include "proto/base/rng.h"
#include "proto/base/text.h"
#include "storage/shard_catalog.h"
#include "storage/token_shard.h"
#include "worker/model/plan.h"

namespace swax::test {

Result<std::string> write_random_data(const std::string& folder, int64_t vocab, int64_t tokens) {
  TokenShardInfo info;
  info.token_bytes = 4;
  info.vocab_size = static_cast<uint32_t>(vocab);
  info.name = "random";
  SWAX_TRY(make_dirs(folder));
  const std::string file = "train-00001.swt";
  SWAX_ASSIGN(const auto writer, TokenShardWriter::create(join_path(folder, file), info));
  std::vector<uint32_t> some;
  for (int64_t i = 0; static_cast<int64_t>(some.size()) < tokens; ++i)
    for (const uint32_t word : random_block(5, Purpose::kTest, static_cast<uint64_t>(i)))
      some.push_back(word % static_cast<uint32_t>(vocab));
  SWAX_TRY(writer->append(some));
  writer->end_document();
  SWAX_ASSIGN(const TokenShardWriter::Finished done, writer->finish());
  pb::DatasetManifest m;
  m.set_name("random");
  m.set_tokenizer("bytes");  // the only one there is
  m.set_vocab_size(info.vocab_size);
  m.set_token_bytes(info.token_bytes);
  pb::ShardInfo& shard = *m.add_shards();
  shard.set_file(file);
  shard.set_split("train");
  shard.set_tokens(done.info.tokens);
  shard.set_documents(done.info.documents);
  shard.set_bytes(done.bytes);
  shard.set_xxh3_128(done.file_hash.hex());
  for (const char* name : {"train", "validation"}) {
    pb::SplitInfo& split = *m.add_splits();
    split.set_name(name);
    if (split.name() != "train") continue;
    split.set_tokens(done.info.tokens);
    split.set_documents(done.info.documents);
  }
  SWAX_TRY(write_dataset_manifest(folder, &m));
  return folder;
}

Result<pb::JobSpec> bench_spec(const std::string& path, int64_t steps, int ranks,
                               const std::vector<SpecOverride>& more) {
  SWAX_ASSIGN(const std::string toml, read_file(path, kSpecBytesMax));
  std::vector<SpecOverride> overrides = {{"training.backend", "cuda"},
                                         {"training.steps", to_text(steps)},
                                         {"training.global_batch_size", to_text(ranks)},
                                         {"training.reduction_lanes", "1"},
                                         {"parallelism.ranks", to_text(ranks)},
                                         {"parallelism.allowed_ranks", "[" + to_text(ranks) + "]"},
                                         {"window.p", "0.5"},
                                         {"window.anneal_frac", "0.0"},
                                         {"lr_scheduler.warmup_steps", "10"},
                                         {"lr_scheduler.cooldown_steps", "0"},
                                         {"validation.freq", "0"}};
  overrides.insert(overrides.end(), more.begin(), more.end());
  const SpecResult loaded = load_spec(toml, path, overrides);
  for (const SpecProblem& problem : loaded.problems)
    if (!problem.warning) return invalid_argument(problem.text());
  pb::JobSpec spec = loaded.spec;
  while (spec.data().sources_size() > 1) spec.mutable_data()->mutable_sources()->RemoveLast();
  return spec;
}

void say_build() {
#ifndef NDEBUG
  std::printf(
      "not a release build: memory that is released is poisoned, which takes 2 to 4 %% of a "
      "step\n");
#endif
}

Status fit_recompute(pb::JobSpec* spec, int ranks, int64_t device_bytes) {
  constexpr int64_t kLeftFree = int64_t{2} << 30;
  pb::ActivationCheckpoint& recompute = *spec->mutable_activation_checkpoint();
  struct Form {
    const char* mode;
    const char* reshard;
  };
  constexpr Form kForms[] = {{"none", "never"},
                             {"light", "never"},
                             {"none", "always"},
                             {"light", "always"},
                             {"block", "always"}};
  for (const Form& form : kForms) {
    recompute.set_mode(form.mode);
    spec->mutable_parallelism()->set_fsdp_reshard_after_forward(form.reshard);
    for (uint32_t layers = 1; layers <= spec->model().layers(); ++layers) {
      recompute.set_layers(layers);
      SWAX_ASSIGN(const MemoryPlan plan, plan_memory(*spec, ranks));
      if (plan.device_bytes() + kLeftFree <= device_bytes) return ok();
      if (recompute.mode() == "none") break;
    }
  }
  return resource_exhausted("no form of the job fits into " + bytes_text(device_bytes));
}

}  // namespace swax::test
