// `swax data baseline`: what simple models reach on the text that a run is validated on.
#include <algorithm>

#include "ops/cli/data_sets.h"
#include "ops/cli/output.h"
#include "ops/cli/state_open.h"
#include "ops/cli/verbs.h"
#include "proto/base/text.h"
#include "worker/data/baseline.h"

namespace swax {
namespace {

constexpr int64_t kSeqLenDefault = 512;

struct Task {
  std::vector<DataSet> data_sets;
  int64_t seq_len = kSeqLenDefault;
  bool doc_reset = true;
};

Result<Task> make_task(const Args& args) {
  Task task;
  if (args.has("--state") == args.has("--data"))
    return invalid_argument("data baseline: give one of --state and --data");
  if (args.has("--data")) {
    SWAX_ASSIGN(task.data_sets, find_data_sets(args.text("--data")));
  } else {
    SWAX_ASSIGN(const OpenRun run, open_run(args.text("--state")));
    const pb::JobSpec& spec = run.view.run.spec;
    task.seq_len = spec.training().seq_len();
    task.doc_reset = !spec.model().has_doc_reset() || spec.model().doc_reset();
    for (const pb::DataSource& source : spec.data().sources()) {
      SWAX_ASSIGN(DataSet found, find_source_data(source, run.state.data_folder()));
      task.data_sets.push_back(std::move(found));
    }
  }
  if (args.has("--seq-len")) task.seq_len = args.integer("--seq-len");
  for (const DataSet& found : task.data_sets) SWAX_TRY(found.status);
  return task;
}

std::vector<int> orders_of(int64_t asked) {
  std::vector<int> orders = {3, 4, 5, static_cast<int>(asked)};
  std::sort(orders.begin(), orders.end());
  orders.erase(std::unique(orders.begin(), orders.end()), orders.end());
  return orders;
}

std::string result_text(const DataSet& found, const std::vector<BaselineResult>& results,
                        int64_t asked) {
  TextTable table({{"order"}, {"bits a byte"}, {"", TextTable::Align::kLeft}});
  for (const BaselineResult& r : results)
    table.add({to_text(r.order), fixed_text(r.bits_per_byte, 4), r.order == asked ? "asked" : ""});
  return found.manifest.name() + " " + found.manifest.digest() + ": " +
         group_digits(results.front().targets) + " targets, " +
         group_digits(results.front().text_bytes) + " bytes of text\n" + table.text(2);
}

Json result_json(const DataSet& found, const std::vector<BaselineResult>& results,
                 int64_t seq_len) {
  Json orders = Json::array();
  for (const BaselineResult& r : results)
    orders.push(Json::object().set("order", r.order).set("bits_per_byte", r.bits_per_byte));
  return Json::object()
      .set("data_set", found.manifest.name())
      .set("digest", found.manifest.digest())
      .set("seq_len", seq_len)
      .set("targets", results.front().targets)
      .set("text_bytes", results.front().text_bytes)
      .set("orders", orders);
}

}  // namespace

int verb_data_baseline(const Args& args) {
  const Result<Task> task = make_task(args);
  if (!task.ok()) return fail(task.status());
  const int64_t asked = args.integer("--order");
  const bool json = args.text("--output") == "json";
  Json list = Json::array();
  for (const DataSet& found : task->data_sets) {
    const Result<std::vector<BaselineResult>> results =
        ngram_baseline(found.folder, orders_of(asked), task->seq_len, task->doc_reset);
    if (!results.ok()) return fail(results.status());
    if (json) {
      list.push(result_json(found, *results, task->seq_len));
    } else {
      print(result_text(found, *results, asked));
    }
  }
  if (json) print_json(list);
  return kExitOk;
}

}  // namespace swax
