// The job spec from text to a checked, resolved message. All problems are reported at once, each
// with place, value, limit and the nearest valid value or known key. Callers pass text; nothing
// here touches files, except that `origin` names them in messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/hash.h"
#include "proto/base/status.h"
#include "proto/job.pb.h"

namespace swax {

struct SpecProblem {
  std::string where;    // "job.toml:12" or "--set training.steps"
  std::string field;    // "training.steps"; may be empty (syntax)
  std::string message;  // "0 is out of range 1..1000000000; nearest valid value is 1"
  bool warning = false;
  std::string text() const;  // one line
};

struct SpecResult {
  pb::JobSpec spec;                   // resolved: defaults filled, steps from tokens
  std::vector<SpecProblem> problems;  // in order of place
  bool ok() const;                    // no problem but warnings
};

constexpr int64_t kSpecBytesMax = 256 * 1024;
constexpr int64_t kSpecLineBytesMax = 4 * 1024;
constexpr int kSpecKeyPartsMax = 8;
constexpr int kSpecProblemsShown = 30;  // more are counted

struct SpecOverride {
  std::string path;   // "training.steps"
  std::string value;  // TOML value; a bare word is taken as a string where the field is one
};

// Parses TOML (limits of size, UTF-8, NUL, line length, key parts and nesting depth are checked
// before the parser sees the text), applies the overrides, fills defaults, checks ranges and
// relations. Never fails otherwise.
SpecResult load_spec(std::string_view text, std::string_view origin,
                     const std::vector<SpecOverride>& overrides);

// The same checks on a message that came over a wire or from a store.
std::vector<SpecProblem> check_spec(const pb::JobSpec& spec);
// Before them: keys that a message lacks because an older build wrote it get their defaults.
// Changes nothing in a message that is valid. A number that may be 0 is never taken for absent: a
// new key of that kind with another default must be `optional`.
void fill_absent(pb::JobSpec* spec);

// Canonical text: sorted "path=value" lines, integers decimal, floats shortest, strings quoted.
// `free_fields` false leaves them out.
std::string canonical_text(const pb::JobSpec& spec, bool free_fields);
// numeric_id: XXH3-128 over the canonical text without free fields (data digests are fields).
// spec_hash: over everything.
Hash128 numeric_id(const pb::JobSpec& spec);
Hash128 spec_hash(const pb::JobSpec& spec);
// Paths whose values differ, with both values: "optimizer.lr: 0.001 -> 0.002 (event)".
struct FieldChange {
  std::string path, before, after;
  pb::FieldClass field_class = pb::FROZEN;
};
std::vector<FieldChange> spec_changes(const pb::JobSpec& before, const pb::JobSpec& after);
// The spec as TOML with every default spelled out.
std::string spec_toml(const pb::JobSpec& spec);
// "1, 2, 4" of allowed_ranks (ranks included), sorted, unique.
std::vector<int> allowed_ranks(const pb::JobSpec& spec);

}  // namespace swax
