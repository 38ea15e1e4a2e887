#include <bit>

#include "ops/cli/output.h"
#include "ops/cli/state_diff.h"
#include "ops/cli/verbs.h"
#include "proto/base/text.h"

namespace swax {
namespace {

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::string index_text(const ElementDifference& element) {
  std::string text;
  for (const int64_t i : element.index) text += (text.empty() ? "" : ", ") + to_text(i);
  return "[" + text + "]";
}

void add_double(TextTable* table, const char* name, const uint64_t (&bits)[2]) {
  const double a = std::bit_cast<double>(bits[0]), b = std::bit_cast<double>(bits[1]);
  table->add({name, to_text(a), to_text(b)});
  table->add({std::string(name) + " bits", hex_bits(a), hex_bits(b)});
}

std::string compared_text(const RunDiff& diff) {
  return group_digits(diff.steps_compared) + " steps, " + group_digits(diff.digests_compared) +
         " with tensor digests, " + group_digits(diff.checkpoints_compared) + " checkpoints";
}

Json pair_json(const uint64_t (&bits)[2]) {
  Json list = Json::array();
  for (const uint64_t b : bits) list.push(hex_bits(std::bit_cast<double>(b)));
  return list;
}

Json step_json(const StepDifference& step) {
  Json fields = Json::array();
  for (const std::string& field : step.fields) fields.push(field);
  return Json::object()
      .set("step", step.step)
      .set("fields", fields)
      .set("loss_bits", pair_json(step.loss_bits))
      .set("norm_bits", pair_json(step.norm_bits));
}

Json element_json(const ElementDifference& element) {
  Json index = Json::array(), values = Json::array(), bits = Json::array();
  for (const int64_t i : element.index) index.push(i);
  for (const float value : element.value) {
    values.push(static_cast<double>(value));
    bits.push(hex_bits(value));
  }
  return Json::object()
      .set("checkpoint_step", element.step)
      .set("tensor", element.tensor)
      .set("element", element.element)
      .set("index", index)
      .set("values", values)
      .set("bits", bits);
}

}  // namespace

std::string diff_text(const RunDiff& diff) {
  std::string text;
  if (diff.equal) text = "equal: " + compared_text(diff) + " compared\n";
  if (diff.step) {
    text += "first step that differs: " + group_digits(diff.step->step) + " (" +
            join(diff.step->fields) + ")\n";
    TextTable table({{"", TextTable::Align::kLeft}, {"A"}, {"B"}});
    add_double(&table, "loss", diff.step->loss_bits);
    add_double(&table, "norm", diff.step->norm_bits);
    text += table.text(2);
  }
  if (diff.tensor)
    text += "first tensor that differs: " + diff.tensor->tensor + " at step " +
            group_digits(diff.tensor->step) + " (" + group_digits(diff.tensor->differing) + " of " +
            group_digits(diff.tensor->compared) + " tensors differ there)\n";
  if (diff.element) {
    const ElementDifference& e = *diff.element;
    text += "first element that differs: " + e.tensor + index_text(e) + ", element " +
            group_digits(e.element) + ", in the checkpoints of step " + group_digits(e.step) + "\n";
    TextTable table({{"", TextTable::Align::kLeft}, {"A"}, {"B"}});
    table.add({"value", to_text(e.value[0]), to_text(e.value[1])});
    table.add({"bits", hex_bits(e.value[0]), hex_bits(e.value[1])});
    text += table.text(2);
  }
  if (!diff.equal) text += "compared: " + compared_text(diff) + "\n";
  for (const std::string& note : diff.notes) text += "note: " + one_line(note) + "\n";
  return text;
}

Json diff_json(const RunDiff& diff) {
  Json notes = Json::array();
  for (const std::string& note : diff.notes) notes.push(note);
  Json tensor;
  if (diff.tensor)
    tensor = Json::object()
                 .set("step", diff.tensor->step)
                 .set("tensor", diff.tensor->tensor)
                 .set("differing", diff.tensor->differing)
                 .set("compared", diff.tensor->compared);
  return Json::object()
      .set("equal", diff.equal)
      .set("first_step", diff.step ? step_json(*diff.step) : Json())
      .set("first_tensor", tensor)
      .set("first_element", diff.element ? element_json(*diff.element) : Json())
      .set("steps_compared", diff.steps_compared)
      .set("digests_compared", diff.digests_compared)
      .set("checkpoints_compared", diff.checkpoints_compared)
      .set("notes", notes);
}

int verb_diff(const Args& args) {
  const Result<RunDiff> diff = diff_runs(args.words()[0], args.words()[1]);
  if (!diff.ok()) return fail(diff.status());
  if (args.text("--output") == "json") {
    print_json(diff_json(*diff));
  } else {
    print(diff_text(*diff));
  }
  return diff->equal ? kExitOk : kExitConflict;
}

}  // namespace swax
