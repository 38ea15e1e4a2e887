#include "ops/cli/state_diff.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <memory>

#include "jobs/spec.h"
#include "ops/cli/state_open.h"
#include "proto/base/text.h"
#include "storage/checkpoint_store.h"

namespace swax {
namespace {

constexpr uint64_t kReadElements = uint64_t{1} << 20;
constexpr size_t kSpecNotesMax = 10;

// One of the two runs.
struct Side {
  std::string name;  // "A"
  OpenRun run;
  std::map<int64_t, pb::StepRecord> steps;
  std::map<int64_t, CheckpointEntry> checkpoints;  // committed and whole, by step
  std::string ckpt_root;
};

Result<Side> open_side(const std::string& name, const std::string& folder, RunDiff* diff) {
  Side side;
  side.name = name;
  SWAX_ASSIGN(side.run, open_run(folder));
  Result<StepHistory> history =
      load_step_history(side.run.state, side.run.view.run.spec.job().name());
  if (history.ok()) {
    for (pb::StepRecord& step : history->steps)
      side.steps[static_cast<int64_t>(step.step())] = std::move(step);
    for (const std::string& problem : history->problems)
      diff->notes.push_back(name + ": " + problem);
  } else if (history.status().code() != Code::kNotFound) {
    return history.status();
  }
  side.ckpt_root = side.run.state.checkpoints_folder(side.run.view.run.spec.job().name());
  Result<std::vector<CheckpointEntry>> entries = list_checkpoints(side.ckpt_root);
  if (!entries.ok() && entries.status().code() != Code::kNotFound) return entries.status();
  if (!entries.ok()) return side;
  for (CheckpointEntry& entry : *entries) {
    if (!entry.problem.empty())
      diff->notes.push_back(name + ": " + entry.name.folder() + ": " + entry.problem);
    // Newest attempt first: of two checkpoints of one step it is the one that counts.
    if (entry.committed && entry.problem.empty())
      side.checkpoints.try_emplace(static_cast<int64_t>(entry.name.step), std::move(entry));
  }
  return side;
}

void note_spec_changes(const Side& a, const Side& b, RunDiff* diff) {
  std::vector<std::string> changes;
  for (const FieldChange& change : spec_changes(a.run.view.run.spec, b.run.view.run.spec)) {
    if (change.field_class != pb::FREE)
      changes.push_back("spec: " + change.path + " is " + printable(change.before) + " in A, " +
                        printable(change.after) + " in B");
  }
  for (size_t i = 0; i < changes.size() && i < kSpecNotesMax; ++i)
    diff->notes.push_back(changes[i]);
  if (changes.size() > kSpecNotesMax)
    diff->notes.push_back("spec: " + to_text(static_cast<int64_t>(changes.size() - kSpecNotesMax)) +
                          " more fields differ");
}

struct Digest {
  uint64_t sum0 = 0, sum1 = 0;
  bool operator==(const Digest&) const = default;
};

// Tensors that both name, in A's order, and which of them differ.
template <typename List>
std::optional<TensorDifference> compare_tensors(const List& list_a, const List& list_b,
                                                int64_t step) {
  std::map<std::string, Digest> digests_b;
  for (const auto& d : list_b) digests_b[d.name()] = {d.digest0(), d.digest1()};
  TensorDifference found;
  found.step = step;
  for (const auto& d : list_a) {
    const auto it = digests_b.find(d.name());
    if (it == digests_b.end()) continue;
    ++found.compared;
    if (it->second == Digest{d.digest0(), d.digest1()}) continue;
    if (found.differing++ == 0) found.tensor = d.name();
  }
  if (found.differing == 0) return std::nullopt;
  return found;
}

std::vector<std::string> differing_fields(const pb::StepRecord& a, const pb::StepRecord& b) {
  std::vector<std::string> fields;
  if (a.loss_bits() != b.loss_bits()) fields.push_back("loss");
  if (a.norm_bits() != b.norm_bits()) fields.push_back("norm");
  if (std::bit_cast<uint32_t>(a.lr()) != std::bit_cast<uint32_t>(b.lr())) fields.push_back("lr");
  if (a.window() != b.window()) fields.push_back("window");
  if (a.targets() != b.targets()) fields.push_back("targets");
  return fields;
}

bool both_have_digests(const pb::StepRecord& a, const pb::StepRecord& b) {
  return a.digests_size() > 0 && b.digests_size() > 0;
}

void compare_steps(const Side& a, const Side& b, RunDiff* diff) {
  for (const auto& [step, record_a] : a.steps) {
    const auto it = b.steps.find(step);
    if (it == b.steps.end()) continue;
    const pb::StepRecord& record_b = it->second;
    ++diff->steps_compared;
    if (!diff->tensor && both_have_digests(record_a, record_b)) {
      ++diff->digests_compared;
      diff->tensor = compare_tensors(record_a.digests(), record_b.digests(), step);
    }
    if (diff->step) continue;
    StepDifference found;
    found.step = step;
    found.fields = differing_fields(record_a, record_b);
    if (diff->tensor) found.fields.push_back("tensors");
    if (found.fields.empty()) continue;
    found.loss_bits[0] = record_a.loss_bits();
    found.loss_bits[1] = record_b.loss_bits();
    found.norm_bits[0] = record_a.norm_bits();
    found.norm_bits[1] = record_b.norm_bits();
    diff->step = found;
  }
}

std::vector<int64_t> unflatten(int64_t element, const pb::CheckpointTensor& tensor) {
  std::vector<int64_t> index(static_cast<size_t>(tensor.shape_size()));
  for (int i = tensor.shape_size() - 1; i >= 0; --i) {
    const auto size = static_cast<int64_t>(std::max<uint64_t>(tensor.shape(i), 1));
    index[static_cast<size_t>(i)] = element % size;
    element /= size;
  }
  return index;
}

int64_t elements_of(const pb::CheckpointTensor& tensor) {
  int64_t elements = 1;
  for (const uint64_t size : tensor.shape()) elements *= static_cast<int64_t>(size);
  return elements;
}

// The first element of `name` that differs between two checkpoints; nothing when none does.
Result<std::optional<ElementDifference>> find_element(CheckpointReader& a, CheckpointReader& b,
                                                      const std::string& name) {
  const int id_a = a.tensor_id(name), id_b = b.tensor_id(name);
  if (id_a < 0 || id_b < 0) return std::optional<ElementDifference>();
  const pb::CheckpointTensor& tensor = a.manifest().tensors(id_a);
  const int64_t elements = elements_of(tensor);
  if (elements != elements_of(b.manifest().tensors(id_b)))
    return failed_precondition("tensor " + name + " has another shape in B");
  std::vector<float> values_a, values_b;
  for (int64_t begin = 0; begin < elements; begin += static_cast<int64_t>(values_a.size())) {
    const auto count = std::min<uint64_t>(kReadElements, static_cast<uint64_t>(elements - begin));
    values_a.resize(count);
    values_b.resize(count);
    SWAX_TRY(a.read(static_cast<uint32_t>(id_a), static_cast<uint64_t>(begin), values_a));
    SWAX_TRY(b.read(static_cast<uint32_t>(id_b), static_cast<uint64_t>(begin), values_b));
    for (size_t i = 0; i < count; ++i) {
      // Bits, not values: a NaN equals itself and -0 differs from 0.
      if (std::memcmp(&values_a[i], &values_b[i], sizeof(float)) == 0) continue;
      ElementDifference found;
      found.tensor = name;
      found.element = begin + static_cast<int64_t>(i);
      found.index = unflatten(found.element, tensor);
      found.value[0] = values_a[i];
      found.value[1] = values_b[i];
      return std::optional(found);
    }
  }
  return std::optional<ElementDifference>();
}

Status compare_elements(const Side& a, const Side& b, const TensorDifference& at, RunDiff* diff) {
  SWAX_ASSIGN(const auto reader_a,
              CheckpointReader::open(a.ckpt_root, a.checkpoints.at(at.step).name));
  SWAX_ASSIGN(const auto reader_b,
              CheckpointReader::open(b.ckpt_root, b.checkpoints.at(at.step).name));
  // The tensor that parted first, when the checkpoint still shows it, else the first that differs.
  std::vector<std::string> names;
  if (diff->tensor) names.push_back(diff->tensor->tensor);
  names.push_back(at.tensor);
  for (const std::string& name : names) {
    SWAX_ASSIGN(diff->element, find_element(*reader_a, *reader_b, name));
    if (!diff->element) continue;
    diff->element->step = at.step;
    return ok();
  }
  diff->notes.push_back("checkpoints of step " + to_text(at.step) + ": digests of " + at.tensor +
                        " differ, its elements do not: a checkpoint is damaged");
  return ok();
}

// Checkpoints of the steps that both keep, at or after the first step that differs, oldest first.
Status compare_checkpoints(const Side& a, const Side& b, RunDiff* diff) {
  const int64_t from = diff->step ? diff->step->step : 0;
  for (const auto& [step, entry_a] : a.checkpoints) {
    const auto it = b.checkpoints.find(step);
    if (step < from || it == b.checkpoints.end()) continue;
    ++diff->checkpoints_compared;
    const std::optional<TensorDifference> found =
        compare_tensors(entry_a.manifest.tensors(), it->second.manifest.tensors(), step);
    if (!found) continue;
    SWAX_TRY(compare_elements(a, b, *found, diff));
    if (!diff->tensor) diff->tensor = found;
    return ok();
  }
  return ok();
}

}  // namespace

Result<RunDiff> diff_runs(const std::string& state_a, const std::string& state_b) {
  RunDiff diff;
  SWAX_ASSIGN(const Side a, open_side("A", state_a, &diff));
  SWAX_ASSIGN(const Side b, open_side("B", state_b, &diff));
  note_spec_changes(a, b, &diff);
  compare_steps(a, b, &diff);
  SWAX_TRY(compare_checkpoints(a, b, &diff));
  if (diff.steps_compared == 0 && diff.checkpoints_compared == 0)
    return failed_precondition("nothing to compare: no step and no checkpoint is in both runs");
  const std::string& digest_a = a.run.view.run.digest;
  const std::string& digest_b = b.run.view.run.digest;
  const bool same_end =
      a.run.view.run.spec.training().steps() == b.run.view.run.spec.training().steps();
  const bool ends_differ =
      same_end && !digest_a.empty() && !digest_b.empty() && digest_a != digest_b;
  if (ends_differ)
    diff.notes.push_back("the digests of the ended runs differ: " + digest_a + ", " + digest_b);
  if (diff.step && diff.checkpoints_compared == 0)
    diff.notes.push_back("no checkpoint of step " + to_text(diff.step->step) +
                         " or later is in both runs: the element is not known");
  diff.equal = !diff.step && !diff.tensor && !ends_differ;
  return diff;
}

}  // namespace swax
