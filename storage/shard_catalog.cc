#include "storage/shard_catalog.h"

#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

#include "proto/base/files.h"
#include "proto/base/ids.h"
#include "proto/base/text.h"
#include "storage/rocks_kv.h"
#include "storage/token_shard_format.h"

namespace swax {
namespace {

constexpr uint32_t kDatasetVersion = 1;
constexpr std::string_view kManifestDb = "manifest.db";
constexpr std::string_view kManifestKey = "manifest";

// One field of the digest. The length stands before the text, so that no text can look like the
// next field.
class DigestText {
 public:
  void add(std::string_view path, std::string_view value) {
    hasher_.update(path);
    hasher_.update("=");
    hasher_.update(to_text(uint64_t{value.size()}));
    hasher_.update(":");
    hasher_.update(value);
    hasher_.update("\n");
  }
  void add(std::string_view path, uint64_t value) { add(path, to_text(value)); }
  Hash128 digest() const { return hasher_.digest(); }

 private:
  Hasher128 hasher_;
};

std::string indexed(std::string_view list, int index, std::string_view field) {
  return std::string(list) + "[" + to_text(index) + "]." + std::string(field);
}

void add_lists(const pb::DatasetManifest& m, DigestText* text) {
  for (int i = 0; i < m.shards_size(); ++i) {
    const pb::ShardInfo& s = m.shards(i);
    text->add(indexed("shards", i, "file"), s.file());
    text->add(indexed("shards", i, "split"), s.split());
    text->add(indexed("shards", i, "tokens"), s.tokens());
    text->add(indexed("shards", i, "documents"), s.documents());
    text->add(indexed("shards", i, "bytes"), s.bytes());
    text->add(indexed("shards", i, "xxh3_128"), s.xxh3_128());
  }
  for (int i = 0; i < m.splits_size(); ++i) {
    const pb::SplitInfo& s = m.splits(i);
    text->add(indexed("splits", i, "name"), s.name());
    text->add(indexed("splits", i, "tokens"), s.tokens());
    text->add(indexed("splits", i, "documents"), s.documents());
    text->add(indexed("splits", i, "text_bytes"), s.text_bytes());
  }
  for (int i = 0; i < m.parents_size(); ++i) {
    text->add(indexed("parents", i, "bytes"), m.parents(i).bytes());
    text->add(indexed("parents", i, "xxh3_128"), m.parents(i).xxh3_128());
  }
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos;
}

// Sizes and sums that the manifest claims about itself and that stand on disk.
Status check_shard_files(const std::string& folder, const pb::DatasetManifest& m) {
  std::map<std::string, std::pair<uint64_t, uint64_t>> sums;  // split -> tokens, documents
  for (const pb::ShardInfo& shard : m.shards()) {
    if (!is_plain_name(shard.file())) {
      return invalid_argument("shard file \"" + printable(shard.file()) + "\": must be a name");
    }
    SWAX_ASSIGN(const int64_t bytes, file_bytes(join_path(folder, shard.file())));
    if (static_cast<uint64_t>(bytes) != shard.bytes()) {
      return data_loss("shard " + join_path(folder, shard.file()) + ": " + to_text(bytes) +
                       " bytes, the manifest says " + to_text(uint64_t{shard.bytes()}));
    }
    sums[shard.split()].first += shard.tokens();
    sums[shard.split()].second += shard.documents();
  }
  for (const pb::SplitInfo& split : m.splits()) {
    const auto& [tokens, documents] = sums[split.name()];
    if (tokens != split.tokens() || documents != split.documents()) {
      return invalid_argument("split " + split.name() +
                              ": tokens=" + to_text(uint64_t{split.tokens()}) +
                              ": its shards hold " + to_text(tokens));
    }
  }
  return ok();
}

Status check_same_counts(const pb::DatasetManifest& m, const pb::ShardInfo& shard,
                         const TokenShardInfo& info) {
  if (info.tokens == shard.tokens() && info.documents == shard.documents() &&
      info.token_bytes == m.token_bytes() && info.vocab_size <= m.vocab_size()) {
    return ok();
  }
  return data_loss("shard " + shard.file() + ": its header says tokens=" + to_text(info.tokens) +
                   " documents=" + to_text(info.documents) + ", the manifest " +
                   to_text(uint64_t{shard.tokens()}) + " and " +
                   to_text(uint64_t{shard.documents()}));
}

Status check_file_hash(const std::string& path, const pb::ShardInfo& shard) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return data_loss("shard " + path + ": cannot be opened");
  Hasher128 hasher;
  std::vector<char> buffer(kTokenBlockBytes);
  for (uint64_t offset = 0; offset < shard.bytes(); offset += buffer.size()) {
    const size_t n = static_cast<size_t>(std::min<uint64_t>(buffer.size(), shard.bytes() - offset));
    SWAX_TRY(read_exactly(fd.get(), offset, buffer.data(), n).with_context("shard " + path));
    hasher.update(buffer.data(), n);
  }
  const std::string computed = hasher.digest().hex();
  if (computed == shard.xxh3_128()) return ok();
  return data_loss("shard " + path + ": XXH3-128 is " + computed + ", the manifest says " +
                   shard.xxh3_128());
}

Status store_manifest(const std::string& db, const pb::DatasetManifest& m) {
  SWAX_ASSIGN(const std::unique_ptr<Kv> kv, open_rocks_kv(db, KvMode::kCreate));
  return kv->write({{std::string(kManifestKey), m.SerializeAsString()}}, true);
}

class ConcatenatedReader final : public DatasetReader {
 public:
  explicit ConcatenatedReader(pb::DatasetManifest manifest) : manifest_(std::move(manifest)) {}

  Status open_split(const std::string& folder, std::string_view split);
  const pb::DatasetManifest& manifest() const override { return manifest_; }
  uint64_t tokens() const override { return ends_.empty() ? 0 : ends_.back(); }
  Status read(uint64_t begin, std::span<int32_t> out) override {
    return for_pieces(begin, out, [](TokenShardReader& shard, uint64_t at, auto piece) {
      return shard.read(at, piece);
    });
  }
  Status document_starts(uint64_t begin, std::span<uint8_t> starts) override;

 private:
  // Calls use(shard, position in the shard, piece) for each shard that [begin, begin + size) meets.
  template <typename T, typename Use>
  Status for_pieces(uint64_t begin, std::span<T> out, Use use);

  pb::DatasetManifest manifest_;
  std::vector<std::unique_ptr<TokenShardReader>> shards_;
  std::vector<uint64_t> ends_;  // position behind each shard in the split
};

Status ConcatenatedReader::open_split(const std::string& folder, std::string_view split) {
  bool found = false;
  for (const pb::SplitInfo& info : manifest_.splits()) found = found || info.name() == split;
  if (!found) return not_found("data set " + folder + ": has no split " + printable(split));
  uint64_t end = 0;
  for (const pb::ShardInfo& shard : manifest_.shards()) {
    if (shard.split() != split || shard.tokens() == 0) continue;
    SWAX_ASSIGN(auto reader, TokenShardReader::open(join_path(folder, shard.file())));
    SWAX_TRY(check_same_counts(manifest_, shard, reader->info()));
    end += shard.tokens();
    shards_.push_back(std::move(reader));
    ends_.push_back(end);
  }
  return ok();
}

template <typename T, typename Use>
Status ConcatenatedReader::for_pieces(uint64_t begin, std::span<T> out, Use use) {
  if (begin > tokens() || out.size() > tokens() - begin) {
    return invalid_argument("tokens [" + to_text(begin) + ", " + to_text(begin + out.size()) +
                            "): must lie in [0, " + to_text(tokens()) + ")");
  }
  size_t index =
      static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
  for (; !out.empty(); ++index) {
    const uint64_t first = index == 0 ? 0 : ends_[index - 1];
    const size_t count = static_cast<size_t>(std::min<uint64_t>(out.size(), ends_[index] - begin));
    SWAX_TRY(use(*shards_[index], begin - first, out.first(count)));
    out = out.subspan(count);
    begin += count;
  }
  return ok();
}

Status ConcatenatedReader::document_starts(uint64_t begin, std::span<uint8_t> starts) {
  std::fill(starts.begin(), starts.end(), uint8_t{0});
  return for_pieces(begin, starts, [](TokenShardReader& shard, uint64_t at, auto piece) {
    // No document crosses a shard border: a shard begins with a document and each end but the last
    // is the start of the next.
    if (at == 0) piece[0] = 1;
    const std::span<const uint64_t> ends = shard.document_ends();
    auto end = std::lower_bound(ends.begin(), ends.end(), std::max<uint64_t>(at, 1));
    for (; end != ends.end() && *end < at + piece.size(); ++end) piece[*end - at] = 1;
    return ok();
  });
}

}  // namespace

Hash128 dataset_digest(const pb::DatasetManifest& m) {
  DigestText text;
  text.add("format_version", m.format_version());
  text.add("name", m.name());
  text.add("tokenizer", m.tokenizer());
  text.add("vocab_size", m.vocab_size());
  text.add("eod_token", m.eod_token());
  text.add("token_bytes", m.token_bytes());
  text.add("document_rule", m.document_rule());
  text.add("validation_fraction", hex_bits(m.validation_fraction()));
  text.add("license", m.license());
  add_lists(m, &text);
  return text.digest();
}

Status write_dataset_manifest(const std::string& folder, pb::DatasetManifest* manifest) {
  manifest->set_format_version(kDatasetVersion);
  SWAX_TRY(check_shard_files(folder, *manifest).with_context("data set " + folder));
  manifest->set_digest(dataset_digest(*manifest).hex());
  const std::string db = join_path(folder, kManifestDb);
  if (path_exists(db)) {
    SWAX_ASSIGN(const pb::DatasetManifest old, read_dataset_manifest(folder));
    if (old.digest() == manifest->digest()) return ok();
    return already_exists("data set " + folder + ": has the digest " + old.digest());
  }
  // Built beside and renamed: a crash leaves a data set with a manifest or one without.
  const std::string tmp = db + ".tmp";
  SWAX_TRY(remove_tree(tmp));
  SWAX_TRY(store_manifest(tmp, *manifest));
  SWAX_TRY(sync_dir(tmp));
  if (std::rename(tmp.c_str(), db.c_str()) != 0) return internal_error("rename to " + db);
  return sync_dir(folder);
}

Result<pb::DatasetManifest> read_dataset_manifest(const std::string& folder) {
  SWAX_ASSIGN(const std::unique_ptr<Kv> kv,
              open_rocks_kv(join_path(folder, kManifestDb), KvMode::kReadOnly));
  const Result<std::string> bytes = kv->get(kManifestKey);
  const std::string where = "data set " + folder;
  if (!bytes.ok() && bytes.status().code() == Code::kNotFound) {
    return data_loss(where + ": its database holds no manifest");
  }
  SWAX_TRY(bytes);
  pb::DatasetManifest manifest;
  if (!manifest.ParseFromString(*bytes)) return data_loss(where + ": the manifest does not parse");
  if (manifest.format_version() != kDatasetVersion) {
    return data_loss(where + ": format_version=" + to_text(uint64_t{manifest.format_version()}) +
                     ": must be " + to_text(uint64_t{kDatasetVersion}));
  }
  const std::string computed = dataset_digest(manifest).hex();
  if (computed != manifest.digest()) {
    return data_loss(where + ": digest stored " + printable(manifest.digest()) + ", computed " +
                     computed);
  }
  return manifest;
}

Result<std::unique_ptr<DatasetReader>> DatasetReader::open(const std::string& folder,
                                                           std::string_view split,
                                                           std::string_view expected_digest) {
  SWAX_ASSIGN(pb::DatasetManifest manifest, read_dataset_manifest(folder));
  if (!expected_digest.empty() && expected_digest != manifest.digest()) {
    return failed_precondition("data set " + folder + ": has the digest " + manifest.digest() +
                               ", expected " + printable(expected_digest));
  }
  if (const Status status = check_shard_files(folder, manifest); !status.ok()) {
    return data_loss("data set " + folder + ": " + status.message());
  }
  auto reader = std::make_unique<ConcatenatedReader>(std::move(manifest));
  SWAX_TRY(reader->open_split(folder, split));
  return std::unique_ptr<DatasetReader>(std::move(reader));
}

Status verify_dataset(const std::string& folder) {
  SWAX_ASSIGN(const pb::DatasetManifest manifest, read_dataset_manifest(folder));
  if (const Status status = check_shard_files(folder, manifest); !status.ok()) {
    return data_loss("data set " + folder + ": " + status.message());
  }
  for (const pb::ShardInfo& shard : manifest.shards()) {
    const std::string path = join_path(folder, shard.file());
    // The blocks first: their message says where in the file the damage is.
    SWAX_ASSIGN(const auto reader, TokenShardReader::open(path));
    SWAX_TRY(check_same_counts(manifest, shard, reader->info()));
    SWAX_TRY(reader->verify());
    SWAX_TRY(check_file_hash(path, shard));
  }
  return ok();
}

}  // namespace swax
