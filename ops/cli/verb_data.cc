// `swax data build|verify|list|describe`.
#include "ops/cli/data_sets.h"
#include "ops/cli/output.h"
#include "ops/cli/verbs.h"
#include "proto/base/files.h"
#include "proto/base/text.h"
#include "storage/shard_catalog.h"
#include "worker/data/build.h"

namespace swax {
namespace {

int64_t stored_bytes(const pb::DatasetManifest& manifest) {
  int64_t bytes = 0;
  for (const pb::ShardInfo& shard : manifest.shards()) bytes += static_cast<int64_t>(shard.bytes());
  return bytes;
}

Json manifest_json(const pb::DatasetManifest& m) {
  Json splits = Json::array(), shards = Json::array();
  for (const pb::SplitInfo& split : m.splits())
    splits.push(Json::object()
                    .set("name", split.name())
                    .set("tokens", split.tokens())
                    .set("documents", split.documents())
                    .set("text_bytes", split.text_bytes()));
  for (const pb::ShardInfo& shard : m.shards())
    shards.push(Json::object()
                    .set("file", shard.file())
                    .set("split", shard.split())
                    .set("tokens", shard.tokens())
                    .set("documents", shard.documents())
                    .set("bytes", shard.bytes())
                    .set("xxh3_128", shard.xxh3_128()));
  return Json::object()
      .set("name", m.name())
      .set("digest", m.digest())
      .set("tokenizer", m.tokenizer())
      .set("vocab_size", m.vocab_size())
      .set("eod_token", m.eod_token())
      .set("document_rule", m.document_rule())
      .set("validation_fraction", m.validation_fraction())
      .set("license", m.license())
      .set("bytes", stored_bytes(m))
      .set("splits", splits)
      .set("shards", shards);
}

Json data_set_json(const DataSet& found) {
  Json json = Json::object();
  json.set("folder", found.folder).set("problem", found.status.message());
  return json.set("manifest", found.status.ok() ? manifest_json(found.manifest) : Json());
}

std::string line(std::string name, const std::string& value) {
  constexpr size_t kValueColumn = 12;
  name.resize(kValueColumn, ' ');
  return name + value + "\n";
}

std::string describe_text(const DataSet& found) {
  std::string text = line("folder", one_line(found.folder));
  if (!found.status.ok())
    return text + line("problem", coloured(one_line(found.status.message()), Colour::kBad));
  const pb::DatasetManifest& m = found.manifest;
  text += line("name", one_line(m.name()));
  text += line("digest", m.digest());
  text += line("tokens", m.tokenizer() + ", vocabulary " + to_text(uint64_t{m.vocab_size()}) +
                             ", " + to_text(uint64_t{m.token_bytes()}) + " bytes each");
  text += line("documents", "rule " + one_line(m.document_rule()) + ", " +
                                to_text(m.validation_fraction()) + " of them for validation");
  if (!m.license().empty()) text += line("licence", one_line(m.license()));
  for (const pb::ParentFile& parent : m.parents())
    text += line("built from", one_line(parent.path()) + ", " +
                                   bytes_text(static_cast<int64_t>(parent.bytes())) + " of text");
  TextTable table({{"split", TextTable::Align::kLeft}, {"tokens"}, {"documents"}, {"text"}});
  for (const pb::SplitInfo& split : m.splits())
    table.add({one_line(split.name()), group_digits(static_cast<int64_t>(split.tokens())),
               group_digits(static_cast<int64_t>(split.documents())),
               bytes_text(static_cast<int64_t>(split.text_bytes()))});
  text += line("stored", bytes_text(stored_bytes(m)) + " in " + to_text(m.shards_size()) +
                             (m.shards_size() == 1 ? " shard" : " shards"));
  return text + table.text(2);
}

BuildOptions build_options(const Args& args) {
  BuildOptions options;
  options.name = args.text("--name");
  options.inputs = args.words();
  options.documents = args.text("--documents");
  options.jsonl_field = args.text("--jsonl-field");
  options.validation_fraction = args.real("--validation-fraction");
  options.license = args.text("--license");
  options.lossy = args.has("--lossy");
  return options;
}

// Bytes of all inputs as stored; 0 when one has no size (a program's output).
int64_t input_bytes(const std::vector<std::string>& inputs) {
  int64_t bytes = 0;
  for (const std::string& input : inputs) {
    const Result<int64_t> size = file_bytes(input);
    if (!size.ok()) return 0;
    bytes += *size;
  }
  return bytes;
}

// Calls visit for each data set below --data; the exit code.
template <typename Visit>
int for_data_sets(const Args& args, const Visit& visit) {
  const Result<std::vector<DataSet>> found = find_data_sets(args.text("--data"));
  if (!found.ok()) return fail(found.status());
  const bool json = args.text("--output") == "json";
  Json list = Json::array();
  int exit_code = kExitOk;
  for (const DataSet& data_set : *found) {
    const Status status = visit(data_set, json ? &list : nullptr);
    if (!status.ok()) exit_code = kExitConflict;
  }
  if (json) print_json(list);
  return exit_code;
}

}  // namespace

int verb_data_build(const Args& args) {
  BuildOptions options = build_options(args);
  const int64_t total = input_bytes(options.inputs);
  Progress progress("data build");
  options.progress = [&](int64_t bytes) { progress.bytes(bytes, total); };
  const Result<pb::DatasetManifest> manifest = build_dataset(options, args.text("--out"));
  if (!manifest.ok()) {
    // Inputs are files the user names: one that is missing or damaged is a wrong input, not a
    // missing run.
    const Code code = manifest.status().code();
    const int exit_code = fail(manifest.status());
    return code == Code::kNotFound || code == Code::kDataLoss ? kExitUsage : exit_code;
  }
  const DataSet built{.folder = join_path(args.text("--out"), manifest->digest()),
                      .status = {},
                      .manifest = *manifest};
  if (args.text("--output") == "json") {
    print_json(data_set_json(built));
  } else {
    print(describe_text(built));
  }
  return kExitOk;
}

int verb_data_verify(const Args& args) {
  return for_data_sets(args, [](const DataSet& found, Json* list) {
    const Status status = found.status.ok() ? verify_dataset(found.folder) : found.status;
    if (list != nullptr) {
      list->push(Json::object()
                     .set("folder", found.folder)
                     .set("verified", status.ok())
                     .set("error", status.message()));
    } else if (status.ok()) {
      print_line(one_line(found.folder) + ": good, " + bytes_text(stored_bytes(found.manifest)) +
                 " read");
    } else {
      print_line(one_line(found.folder) + ": " + coloured("damaged", Colour::kBad) + ": " +
                 one_line(status.message()));
    }
    return status;
  });
}

int verb_data_list(const Args& args) {
  TextTable table({{"name", TextTable::Align::kLeft},
                   {"train tokens"},
                   {"held out"},
                   {"digest", TextTable::Align::kLeft}});
  std::string problems;
  const int exit_code = for_data_sets(args, [&](const DataSet& found, Json* list) {
    if (list != nullptr) {
      list->push(data_set_json(found));
    } else if (found.status.ok()) {
      table.add(
          {one_line(found.manifest.name(), 16), group_digits(split_tokens(found.manifest, "train")),
           group_digits(split_tokens(found.manifest, "validation")), found.manifest.digest()});
    } else {
      problems += one_line(found.folder) + ": " + one_line(found.status.message()) + "\n";
    }
    return found.status;
  });
  if (args.text("--output") == "text" && exit_code != kExitNotFound) {
    print(table.text());
    print(problems);
  }
  return exit_code;
}

int verb_data_describe(const Args& args) {
  bool first = true;
  return for_data_sets(args, [&](const DataSet& found, Json* list) {
    if (list != nullptr) {
      list->push(data_set_json(found));
    } else {
      print((first ? "" : "\n") + describe_text(found));
    }
    first = false;
    return found.status;
  });
}

}  // namespace swax
