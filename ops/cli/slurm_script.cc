#include "ops/cli/slurm_script.h"

#include <algorithm>

#include "jobs/spec.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr std::string_view kHeader = "#SBATCH ";
constexpr std::string_view kSettingsEnd = "# ---- end of settings\n";

// Slurm reads header lines as a shell would split them, but expands nothing.
bool plain(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte <= ' ' || byte == 127 || c == '"' || c == '\'' || c == '\\' || c == '#';
  });
}

std::string quoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

class Header {
 public:
  void add(const std::string& option, const std::string& value) {
    text_ += std::string(kHeader) + "--" + option + (value.empty() ? "" : "=" + value) + "\n";
  }
  void add(const std::string& option, uint64_t value) { add(option, to_text(value)); }
  // From the spec: left out when empty.
  void field(const std::string& option, const char* name, const std::string& value) {
    if (value.empty()) return;
    if (!plain(value) && status_.ok())
      status_ = invalid_argument(std::string("resources.") + name + "=\"" + printable(value) +
                                 "\": must have no space, quote, backslash or #");
    add(option, value);
  }
  const Status& status() const { return status_; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  Status status_ = ok();
};

std::string limit_text(uint64_t minutes) { return to_text(minutes); }

void add_needs(const pb::JobSpec& spec, const SlurmShape& shape, Header* header) {
  const pb::Resources& r = spec.resources();
  header->add("ntasks-per-node", uint64_t{1});
  header->add("cpus-per-task", static_cast<uint64_t>(shape.cpus_per_task));
  if (r.memory_mib() > 0) header->add("mem", to_text(r.memory_mib()) + "M");
  if (r.gpus_per_node() > 0 && !r.gpu_type().empty())
    header->field("gres", "gpu_type",
                  "gpu:" + r.gpu_type() + ":" + to_text(uint64_t{r.gpus_per_node()}));
  if (r.gpus_per_node() > 0 && r.gpu_type().empty())
    header->add("gres", "gpu:" + to_text(uint64_t{r.gpus_per_node()}));
  header->field("partition", "partition", r.partition());
  header->field("account", "account", r.account());
  header->field("qos", "qos", r.qos());
  header->field("constraint", "constraint", r.constraint());
  header->field("reservation", "reservation", r.reservation());
  header->field("exclude", "exclude", r.exclude());
  if (r.time_minutes() > 0) header->add("time", limit_text(r.time_minutes()));
  header->add("signal", "B:USR1@" + to_text(uint64_t{r.signal_seconds()}));
}

Header header_of(const SlurmScript& script, const pb::JobSpec& spec) {
  const SlurmShape shape = slurm_shape(spec);
  Header header;
  header.add("job-name", (script.pool ? "swax-pool-" : "swax-") + spec.job().name());
  if (script.pool) header.add("array", "1-" + to_text(shape.nodes));
  header.add("nodes", script.pool ? uint64_t{1} : static_cast<uint64_t>(shape.nodes));
  add_needs(spec, shape, &header);
  if (!script.pool) header.add("no-kill", "");
  header.add("requeue", "");
  header.add("open-mode", "append");
  header.add("output", script.pool ? "%x-%A_%a.out" : "%x-%j.out");
  if (!script.request_id.empty()) header.add("comment", slurm_comment(script.request_id));
  return header;
}

std::string settings_of(const SlurmScript& script, const pb::JobSpec& spec) {
  std::string text = "swax=" + quoted(script.swax) + "\n";
  if (script.pool) {
    text += "address=" + quoted(script.coordinator) + "\n";
  } else {
    text += "spec=" + quoted(script.spec_path) + "\nstate=" + quoted(script.state) + "\n";
  }
  text += "slots=" + to_text(slurm_shape(spec).ranks_per_node) + "\n";
  if (!script.pool) text += "exclude=" + quoted(spec.resources().exclude()) + "\n";
  const std::string& container = spec.resources().container();
  text +=
      "container=(" + (container.empty() ? "" : quoted("--container-image=" + container)) + ")\n";
  return text;
}

}  // namespace

SlurmShape slurm_shape(const pb::JobSpec& spec) {
  const pb::Resources& r = spec.resources();
  const int64_t ranks = std::max<int64_t>(1, spec.parallelism().ranks());
  SlurmShape shape;
  shape.ranks_per_node = r.ranks_per_node() > 0 ? r.ranks_per_node() : r.gpus_per_node();
  shape.ranks_per_node = std::max<int64_t>(1, shape.ranks_per_node);
  const int64_t cpus =
      r.cpus_per_rank() > 0 ? r.cpus_per_rank() : spec.parallelism().compute_threads();
  shape.cpus_per_task = shape.ranks_per_node * std::max<int64_t>(1, cpus);
  const int64_t needed = (ranks + shape.ranks_per_node - 1) / shape.ranks_per_node;
  shape.nodes = (r.nodes() > 0 ? r.nodes() : needed) + r.spare_nodes();
  return shape;
}

Result<std::string> render_script(const SlurmScript& script, const pb::JobSpec& spec) {
  const SlurmShape shape = slurm_shape(spec);
  const int64_t train_nodes = shape.nodes - spec.resources().spare_nodes();
  if (!script.pool && train_nodes * shape.ranks_per_node < spec.parallelism().ranks())
    return invalid_argument("resources.nodes=" + to_text(train_nodes) + " of " +
                            to_text(shape.ranks_per_node) + " ranks are too few for " +
                            to_text(uint64_t{spec.parallelism().ranks()}) + " ranks");
  if (!plain(script.state))
    return invalid_argument("state folder " + printable(script.state) +
                            ": must have no space, quote, backslash or #");
  const pb::Resources& r = spec.resources();
  if (r.time_minutes() > 0 && uint64_t{r.time_minutes()} * 60 <= r.signal_seconds())
    return invalid_argument("resources.time_minutes=" + to_text(uint64_t{r.time_minutes()}) +
                            " leaves no time to train: the ranks are told to leave " +
                            "resources.signal_seconds=" + to_text(uint64_t{r.signal_seconds()}) +
                            " before the limit");
  const Header header = header_of(script, spec);
  SWAX_TRY(header.status());
  const std::string text = script.pool ? kPoolScript : kTrainScript;
  const size_t begin = text.find("\n" + std::string(kHeader)) + 1;
  const size_t last = text.rfind("\n" + std::string(kHeader)) + 1;
  const size_t end = text.find('\n', last) + 1;
  const size_t settings = text.find(kSettingsEnd);
  return text.substr(0, begin) + header.text() + text.substr(end, settings - end) +
         settings_of(script, spec) + text.substr(settings);
}

std::string slurm_comment(const std::string& request_id) { return "swax:" + request_id; }

}  // namespace swax
