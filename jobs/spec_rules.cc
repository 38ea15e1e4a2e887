// Relations between fields. Each names both fields with their values and, where there is one, the
// nearest valid value.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "jobs/model_shape.h"
#include "jobs/schedule.h"
#include "jobs/spec_check.h"
#include "jobs/spec_fields.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr int64_t kStepsMax = 1'000'000'000;
constexpr int kByteVocab = 257;  // 256 byte values and the end of a document

std::string text_of(uint64_t value) { return to_text(value); }

void check_length(const pb::JobSpec& spec, SpecFindings* findings) {
  const pb::Training& t = spec.training();
  if (!findings->good({"training.steps", "training.tokens"})) return;
  if (t.steps() == 0 && t.tokens() == 0)
    return findings->error("training.steps", "required key is missing: give steps or tokens");
  if (t.steps() != 0 && t.tokens() != 0)
    return findings->error("training.tokens", "steps=" + text_of(t.steps()) +
                                                  " is given too: give exactly one of the two");
  if (!findings->good({"training.seq_len", "training.global_batch_size"})) return;
  const int64_t steps = total_steps(spec);
  if (steps > kStepsMax)
    return findings->error("training.tokens", text_of(t.tokens()) + " tokens are " +
                                                  to_text(steps) + " steps; the most is " +
                                                  to_text(kStepsMax));
  const uint64_t step_tokens = uint64_t{t.seq_len()} * t.global_batch_size();
  const uint64_t steps_max = ((uint64_t{1} << 62) - 1) / step_tokens;
  if (static_cast<uint64_t>(steps) > steps_max)
    findings->error("training.steps",
                    to_text(steps) + " steps of " + text_of(step_tokens) +
                        " tokens are 2^62 tokens or more; nearest valid value is " +
                        text_of(steps_max));
}

void check_schedule(const pb::JobSpec& spec, SpecFindings* findings) {
  const pb::LrScheduler& lr = spec.lr_scheduler();
  if (findings->good({"optimizer.lr"}) && !(static_cast<float>(spec.optimizer().lr()) > 0.0F))
    findings->error("optimizer.lr", to_text(spec.optimizer().lr()) + " is 0 as a 32-bit float");
  if (!findings->good({"training.steps", "training.tokens", "training.seq_len",
                       "training.global_batch_size", "lr_scheduler.warmup_steps",
                       "lr_scheduler.cooldown_steps"}))
    return;
  const uint64_t steps = static_cast<uint64_t>(total_steps(spec));
  if (lr.warmup_steps() > steps)
    findings->warning("lr_scheduler.warmup_steps",
                      text_of(lr.warmup_steps()) + " is longer than the run of " + text_of(steps) +
                          " steps: lr never reaches its peak");
  else if (lr.cooldown_steps() > 0 && lr.warmup_steps() + lr.cooldown_steps() > steps)
    findings->warning("lr_scheduler.cooldown_steps",
                      text_of(lr.cooldown_steps()) + " and warmup_steps=" +
                          text_of(lr.warmup_steps()) + " are longer than the run of " +
                          text_of(steps) + " steps: the cool-down begins in its middle");
}

void check_window(const pb::JobSpec& spec, SpecFindings* findings) {
  if (!findings->good({"window.short", "window.long"})) return;
  const uint64_t small = spec.window().short_();
  const uint64_t large = spec.window().long_();
  if (small > large)
    findings->error("window.short", text_of(small) + " is more than window.long=" + text_of(large) +
                                        "; nearest valid value is " + text_of(large));
}

void check_heads(const pb::Model& m, SpecFindings* findings) {
  if (findings->good({"model.head_dim"}) && m.head_dim() % 2 != 0)
    findings->error("model.head_dim", text_of(m.head_dim()) +
                                          " is odd: must be even (rotary pairs); nearest valid "
                                          "value is " +
                                          text_of(m.head_dim() - 1));
  if (!findings->good({"model.heads", "model.kv_heads"}) || m.kv_heads() == 0) return;
  if (m.heads() % m.kv_heads() == 0) return;
  uint32_t divisor = std::min(m.kv_heads(), m.heads());
  while (m.heads() % divisor != 0) --divisor;
  findings->error("model.kv_heads", text_of(m.kv_heads()) +
                                        " does not divide model.heads=" + text_of(m.heads()) +
                                        "; nearest valid value is " + text_of(divisor));
}

bool has_mlstm(const pb::Model& m) {
  return m.pattern().substr(0, m.layers()).find('M') != std::string::npos;
}

void check_mlstm(const pb::Model& m, SpecFindings* findings) {
  if (!findings->good({"model.pattern", "model.layers"}) || !has_mlstm(m)) return;
  const auto needed = [&](const char* field, uint32_t value) {
    if (value == 0 && findings->good({field}))
      findings->error(field, "must be 1 or more: pattern \"" + printable(m.pattern()) +
                                 "\" has mLSTM layers (M)");
  };
  needed("model.mlstm_heads", m.mlstm_heads());
  needed("model.mlstm_qk_dim", m.mlstm_qk_dim());
  needed("model.mlstm_v_dim", m.mlstm_v_dim());
}

// A shard is a multiple of the lcm of a layer's row lengths; sizes without common factors would
// make it larger than any memory (and, without this limit, than int64).
void check_rows(const pb::Model& m, SpecFindings* findings) {
  constexpr int64_t kRowsLcmMax = int64_t{1} << 40;
  if (!findings->good({"model.dim", "model.ff_dim", "model.heads", "model.head_dim",
                       "model.mlstm_heads", "model.mlstm_v_dim", "model.pattern", "model.layers"}))
    return;
  const int64_t attention_row = int64_t{m.heads()} * m.head_dim();
  const int64_t mlstm_row = has_mlstm(m) ? int64_t{m.mlstm_heads()} * m.mlstm_v_dim() : 1;
  const int64_t layer = std::lcm<int64_t>(m.dim(), m.ff_dim());
  for (const int64_t row : {attention_row, mlstm_row}) {
    if (std::lcm(layer, row) <= kRowsLcmMax) continue;
    findings->error("model.ff_dim",
                    text_of(m.ff_dim()) + ", dim=" + text_of(m.dim()) + " and the mixer width " +
                        to_text(row) +
                        " have a least common multiple above 2^40, the unit of sharding: choose "
                        "sizes with common factors");
    return;
  }
}

void check_recompute(const pb::JobSpec& spec, SpecFindings* findings) {
  const uint32_t layers = spec.activation_checkpoint().layers();
  if (!findings->good({"activation_checkpoint.layers", "model.layers"})) return;
  if (layers <= spec.model().layers()) return;
  findings->error("activation_checkpoint.layers",
                  text_of(layers) + " is more than model.layers=" + text_of(spec.model().layers()) +
                      "; nearest valid value is " + text_of(spec.model().layers()));
}

void check_ranks(const pb::JobSpec& spec, SpecFindings* findings) {
  const pb::Parallelism& p = spec.parallelism();
  const uint32_t batch = spec.training().global_batch_size();
  if (!findings->good({"parallelism.ranks", "parallelism.allowed_ranks"})) return;
  const auto& allowed = p.allowed_ranks();
  if (findings->good({"training.global_batch_size"}) && p.ranks() > batch)
    return findings->error(
        "parallelism.ranks",
        text_of(p.ranks()) + " is more than training.global_batch_size=" + text_of(batch) +
            ", the sequences of a step; nearest valid value is " + text_of(batch));
  if (allowed.empty() || std::find(allowed.begin(), allowed.end(), p.ranks()) != allowed.end())
    return;
  uint32_t nearest = allowed[0];
  std::string list;
  for (const uint32_t ranks : allowed) {
    if (std::llabs(int64_t{ranks} - p.ranks()) < std::llabs(int64_t{nearest} - p.ranks()))
      nearest = ranks;
    list += (list.empty() ? "" : ", ") + text_of(ranks);
  }
  findings->error("parallelism.ranks", text_of(p.ranks()) + " is not in allowed_ranks [" +
                                           printable(list, 60) + "]; nearest valid value is " +
                                           text_of(nearest));
}

void check_source(const pb::DataSource& source, const std::string& path, SpecFindings* findings) {
  if (!findings->good({path + ".text", path + ".path"})) return;
  if (source.text().empty() && source.path().empty())
    findings->error(path, "needs a text (debian:kjv or file:PATH) or a path of a built data set");
  if (!source.text().empty() && !source.path().empty())
    findings->error(path + ".path",
                    "text=" + quoted(printable(source.text())) + " is given too: give exactly one");
}

// srun starts processes beside the worker, not in the worker's container.
void check_launcher(const pb::Resources& resources, SpecFindings* findings) {
  if (!findings->good({"resources.launcher", "resources.container"})) return;
  if (resources.launcher() == "srun" && !resources.container().empty())
    findings->error("resources.launcher",
                    "\"srun\" does not start ranks in a container, and resources.container=" +
                        quoted(printable(resources.container())) +
                        " is given; nearest valid value is \"mpirun\"");
}

void check_data(const pb::JobSpec& spec, SpecFindings* findings) {
  std::set<std::string> names;
  bool bytes = false;
  for (int i = 0; i < spec.data().sources_size(); ++i) {
    const pb::DataSource& source = spec.data().sources(i);
    const std::string path = item_path("data.sources", i);
    check_source(source, path, findings);
    bytes |= !source.text().empty();
    if (findings->good({path + ".name"}) && !names.insert(source.name()).second)
      findings->error(path + ".name", "\"" + printable(source.name()) + "\" is used twice");
  }
  const uint32_t vocab = spec.model().vocab_size();
  if (bytes && findings->good({"model.vocab_size"}) && vocab < kByteVocab)
    findings->error("model.vocab_size",
                    text_of(vocab) +
                        " is too small for text read as bytes (256 values and the end "
                        "of a document); nearest valid value is " +
                        to_text(kByteVocab));
}

}  // namespace

void SpecFindings::error(std::string_view field, std::string message) {
  bad.emplace(field);
  problems.push_back({.where = "", .field = std::string(field), .message = std::move(message)});
}

void SpecFindings::warning(std::string_view field, std::string message) {
  problems.push_back(
      {.where = "", .field = std::string(field), .message = std::move(message), .warning = true});
}

bool SpecFindings::good(std::initializer_list<std::string_view> fields) const {
  return std::none_of(fields.begin(), fields.end(),
                      [&](std::string_view field) { return bad.contains(field); });
}

void check_relations(const pb::JobSpec& spec, SpecFindings* findings) {
  check_length(spec, findings);
  check_schedule(spec, findings);
  check_window(spec, findings);
  check_heads(spec.model(), findings);
  check_mlstm(spec.model(), findings);
  check_rows(spec.model(), findings);
  const uint32_t lanes = spec.training().reduction_lanes();
  if (findings->good({"training.reduction_lanes"}) && (lanes & (lanes - 1)) != 0)
    findings->error(
        "training.reduction_lanes",
        text_of(lanes) + " is not allowed: must be 1, 2, 4 or 8; nearest valid value is 4");
  check_ranks(spec, findings);
  check_recompute(spec, findings);
  check_launcher(spec.resources(), findings);
  check_data(spec, findings);
}

}  // namespace swax
