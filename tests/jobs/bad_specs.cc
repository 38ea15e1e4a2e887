#include "tests/jobs/bad_specs.h"

#include <cstdint>

#include "proto/base/rng.h"
#include "tests/jobs/spec_texts.h"

namespace swax::test {
namespace {

BadSpec edited(std::string name, std::string line, std::string by, std::string expect) {
  return {std::move(name), [=] { return minimal_with(line, by); }, std::move(expect), {}};
}

BadSpec whole(std::string name, std::function<std::string()> text, std::string expect) {
  return {std::move(name), std::move(text), std::move(expect), {}};
}

BadSpec set(std::string name, std::string path, std::string value, std::string expect) {
  return {std::move(name),
          [] { return minimal_text(); },
          std::move(expect),
          {{std::move(path), std::move(value)}}};
}

std::string repeated(const std::string& piece, size_t count) {
  std::string text;
  text.reserve(piece.size() * count);
  for (size_t i = 0; i < count; ++i) text += piece;
  return text;
}

std::string garbage(size_t bytes) {
  std::string text;
  for (uint64_t i = 0; text.size() < bytes; ++i) {
    for (const uint32_t word : random_block(11, Purpose::kTest, i)) text += static_cast<char>(word);
  }
  return text;
}

void add_bytes(std::vector<BadSpec>* list) {
  const auto add = [&](const char* name, std::function<std::string()> text, const char* expect) {
    list->push_back(whole(name, std::move(text), expect));
  };
  add(
      "empty_file", [] { return std::string(); }, "job.name: required key is missing");
  add(
      "only_a_comment", [] { return std::string("# nothing\n"); }, "spec_version");
  add(
      "binary_garbage", [] { return garbage(4096); }, "this is not a text file");
  add(
      "nul_byte", [] { return minimal_text() + std::string(1, '\0'); }, "job.toml:27: holds a NUL");
  add(
      "utf8_mark", [] { return "\xEF\xBB\xBF" + minimal_text(); }, "byte order mark");
  add(
      "utf16_mark", [] { return "\xFF\xFE" + minimal_text(); }, "UTF-16");
  add(
      "latin1", [] { return minimal_with("name = \"a\"", "name = \"\xE9\""); }, "job.toml:3:");
  add(
      "surrogate", [] { return minimal_text() + "# \xED\xA0\x80\n"; }, "not valid UTF-8");
  add(
      "hundred_megabytes", [] { return std::string(100'000'000, 'x'); }, "100000000 bytes");
  add(
      "one_byte_too_many", [] { return minimal_text() + repeated("#\n", 131'072); }, "262144");
  add(
      "long_line", [] { return minimal_text() + "#" + std::string(5000, 'x') + "\n"; },
      "job.toml:27: line has 5001 bytes");
}

void add_syntax(std::vector<BadSpec>* list) {
  const auto add = [&](const char* name, std::function<std::string()> text, const char* expect) {
    list->push_back(whole(name, std::move(text), expect));
  };
  add(
      "dotted_key_100000", [] { return repeated("a.", 100'000) + "b = 1\n"; }, "line has");
  add(
      "dotted_key_1000", [] { return repeated("a.", 1000) + "b = 1\n"; },
      "job.toml:1: key has more");
  add(
      "dotted_header_1000", [] { return "[" + repeated("a.", 1000) + "b]\n"; }, "dotted parts");
  add(
      "dotted_quoted_keys", [] { return repeated("\"a\" . ", 20) + "b = 1\n"; }, "dotted parts");
  add(
      "dotted_inline_keys", [] { return "a = { " + repeated("a.", 20) + "b = 1 }\n"; }, "dotted");
  add(
      "depth_200000",  // lines of 4,000: a line may have 4,096 bytes, the text 262,144
      [] { return "a = " + repeated(std::string(4000, '[') + "\n", 50) + "\n"; }, "nested more");
  add(
      "depth_of_tables", [] { return "a = " + repeated("{a=", 900) + "1" + repeated("}", 900); },
      "nested more");
  add(
      "depth_17", [] { return "a = " + repeated("[", 17) + repeated("]", 17) + "\n"; }, "nested");
  add(
      "json", [] { return std::string("{\"job\": {\"name\": \"a\"}}\n"); }, "job.toml:1:");
  add(
      "yaml", [] { return std::string("job:\n  name: a\n"); }, "job.toml:1:");
  add(
      "unclosed_string", [] { return minimal_with("\"debian:kjv\"", "\"debian:kjv"); },
      "job.toml:26:");
  add(
      "unclosed_header", [] { return minimal_with("[window]", "[window"); }, "job.toml:15:");
  add(
      "unclosed_list", [] { return minimal_text() + "[parallelism]\nallowed_ranks = [1, 2\n"; },
      "job.toml:");
  add(
      "duplicate_key", [] { return minimal_with("steps = 10", "steps = 10\nsteps = 11"); },
      "job.toml:20:");
  add(
      "duplicate_section", [] { return minimal_text() + "[model]\nlayers = 3\n"; }, "job.toml:27:");
  add(
      "integer_of_20_digits",
      [] { return minimal_with("steps = 10", "steps = 99999999999999999999"); }, "job.toml:19:");
  add(
      "no_value", [] { return minimal_with("steps = 10", "steps ="); }, "job.toml:19:");
  add(
      "carriage_returns", [] { return std::string("spec_version = 1\r[job]\r"); }, "job.toml:1:");
  add(
      "ten_thousand_unknown_keys",
      [] {
        std::string text = minimal_text();
        for (int i = 0; i < 10'000; ++i) text += "key" + std::to_string(i) + " = 1\n";
        return text;
      },
      "more problems");
}

void add_types(std::vector<BadSpec>* list) {
  const auto add = [&](const char* name, const char* line, const char* by, const char* expect) {
    list->push_back(edited(name, line, by, expect));
  };
  add("string_for_integer", "steps = 10", "steps = \"10\"", "must be an integer, not a string");
  add("float_for_integer", "steps = 10", "steps = 100.0", "write 100");
  add("exponent_for_integer", "steps = 10", "steps = 1e3", "write 1000");
  add("half_a_step", "steps = 10", "steps = 0.5", "training.steps: 0.5 is a float");
  add("boolean_for_integer", "steps = 10", "steps = true", "not a boolean");
  add("list_for_integer", "steps = 10", "steps = [10]", "not a list");
  add("date_for_integer", "steps = 10", "steps = 2024-01-01", "not a date");
  add("table_for_integer", "steps = 10", "steps = { a = 1 }", "not a table");
  add("string_for_number", "lr = 0.001", "lr = \"0.001\"", "must be a number");
  add("integer_for_string", "name = \"a\"", "name = 5", "must be a string, not an integer");
  add("integer_for_section", "[job]", "job = 5\n[job2]", "job: must be a section");
  add("table_for_sources", "[[data.sources]]", "[data.sources]",
      "must be a list, [[data.sources]]");
  add("string_for_boolean", "layers = 2", "layers = 2\ndoc_reset = \"true\"", "true or false");
  add("nan_lr", "lr = 0.001", "lr = nan", "optimizer.lr: nan is not allowed");
  add("infinite_lr", "lr = 0.001", "lr = inf", "optimizer.lr: inf is not allowed");
  add("mixed_list", "lr = 0.001", "lr = 0.001\n[parallelism]\nallowed_ranks = [1, \"2\"]",
      "allowed_ranks[1]: must be an integer");
  add("list_of_integers_for_sources", "[[data.sources]]\nname = \"s\"\ntext = \"debian:kjv\"",
      "[data]\nsources = [1]", "data.sources[0]: must be a table");
  add("unknown_key", "steps = 10", "stepz = 10", "nearest known key is \"training.steps\"");
  add("unknown_section", "[optimizer]", "[optimiser]", "nearest known key is \"optimizer\"");
  add("key_of_another_section", "steps = 10", "steps = 10\nlr = 1", "\"optimizer.lr\"");
  add("key_without_section", "spec_version = 1", "spec_version = 1\nseed = 3", "\"job.seed\"");
  add("digest_is_no_key", "name = \"s\"", "name = \"s\"\ndigest = \"00\"", "unknown key");
}

void add_ranges(std::vector<BadSpec>* list) {
  const auto add = [&](const char* name, const char* line, const char* by, const char* expect) {
    list->push_back(edited(name, line, by, expect));
  };
  add("zero_steps", "steps = 10", "steps = 0", "0 is out of range 1..1000000000; nearest valid");
  add("negative_steps", "steps = 10", "steps = -1", "nearest valid value is 1");
  add("too_many_steps", "steps = 10", "steps = 1_000_000_001", "nearest valid value is 1000000000");
  add("largest_integer", "steps = 10", "steps = 9223372036854775807", "out of range");
  add("zero_ranks", "lr = 0.001", "lr = 0.001\n[parallelism]\nranks = 0",
      "parallelism.ranks: 0 is out of range 1..65536");
  add("billion_ranks", "lr = 0.001", "lr = 0.001\n[parallelism]\nranks = 1000000000",
      "nearest valid value is 65536");
  add("zero_in_allowed_ranks", "lr = 0.001", "lr = 0.001\n[parallelism]\nallowed_ranks = [1, 0]",
      "allowed_ranks[1]: 0 is out of range");
  add("zero_seq_len", "seq_len = 32", "seq_len = 0", "training.seq_len");
  add("long_seq_len", "seq_len = 32", "seq_len = 1048577", "nearest valid value is 1048576");
  add("zero_batch", "global_batch_size = 4", "global_batch_size = 0", "1..65536");
  add("long_chunk", "layers = 2", "layers = 2\nmlstm_chunk = 1025", "1025 is out of range 1..1024");
  add("narrowing", "dim = 16", "dim = 4294967312", "out of range 2..65536");  // 2^32 + 16
  add("zero_lr", "lr = 0.001", "lr = 0", "must be > 0");
  add("negative_lr", "lr = 0.001", "lr = -1", "must be > 0");
  add("tiny_lr", "lr = 0.001", "lr = 1e-60", "0 as a 32-bit float");
  add("negative_seed", "seed = 7", "seed = -7", "job.seed");
  add("other_version", "spec_version = 1", "spec_version = 2", "spec_version: 2 is out of range");
  add("large_p", "long = 8", "long = 8\np = 1.5", "window.p: 1.5 is out of range: must be 0 to 1");
  add("beta_of_one", "lr = 0.001", "lr = 0.001\nbeta2 = 1.0", "optimizer.beta2");
  add("upper_case_name", "name = \"a\"", "name = \"My Job\"", "is not a name");
  add("name_as_path", "name = \"a\"", "name = \"../a\"", "is not a name");
  add("empty_name", "name = \"a\"", "name = \"\"", "job.name");
  add("unknown_start", "seed = 7", "seed = 7\nstart = \"fersh\"", "nearest is fresh");
  add("unknown_backend", "steps = 10", "steps = 10\nbackend = \"tpu\"",
      "must be one of cpu, cuda; nearest is cpu");
  add("misspelt_backend", "steps = 10", "steps = 10\nbackend = \"gpu\"",
      "must be one of cpu, cuda; nearest is cpu");
  add("capital_backend", "steps = 10", "steps = 10\nbackend = \"CUDA\"",
      "must be one of cpu, cuda");
  add("unknown_layer", "layers = 2", "layers = 2\npattern = \"SG\"", "layer kinds are S");
  add("empty_pattern", "layers = 2", "layers = 2\npattern = \"\"", "model.pattern");
  add("terminal_codes", "seed = 7", "seed = 7\ndescription = \"\\u001b[2J\"", "control character");
  add("path_traversal", "text = \"debian:kjv\"", "path = \"../../etc/passwd\"", "\"..\"");
  add("file_traversal", "text = \"debian:kjv\"", "text = \"file:a/../../b\"", "\"..\"");
  add("unknown_text", "text = \"debian:kjv\"", "text = \"debian:bible\"",
      "debian:kjv or file:PATH");
}

void add_relations(std::vector<BadSpec>* list) {
  const auto add = [&](const char* name, const char* line, const char* by, const char* expect) {
    list->push_back(edited(name, line, by, expect));
  };
  add("no_steps", "steps = 10\n", "", "give steps or tokens");
  add("steps_and_tokens", "steps = 10", "steps = 10\ntokens = 1000", "exactly one");
  add("too_many_tokens", "steps = 10", "tokens = 4611686018427387904", "steps; the most is");
  add("run_beyond_2_62_tokens", "steps = 10\nseq_len = 32\nglobal_batch_size = 4",
      "steps = 1000000000\nseq_len = 1048576\nglobal_batch_size = 65536", "2^62");
  add("odd_head_dim", "head_dim = 8", "head_dim = 7", "nearest valid value is 6");
  add("uneven_heads", "heads = 2", "heads = 6\nkv_heads = 4", "nearest valid value is 3");
  add("no_mlstm_heads", "mlstm_heads = 2\n", "", "model.mlstm_heads: must be 1 or more");
  add("no_mlstm_value", "mlstm_v_dim = 8\n", "", "model.mlstm_v_dim: must be 1 or more");
  add("short_above_long", "short = 4", "short = 9", "window.long=8");
  add("three_lanes", "steps = 10", "steps = 10\nreduction_lanes = 3", "1, 2, 4 or 8");
  add("ranks_above_batch", "lr = 0.001", "lr = 0.001\n[parallelism]\nranks = 5",
      "nearest valid value is 4");
  add("recompute_in_more_layers", "lr = 0.001",
      "lr = 0.001\n[activation_checkpoint]\nmode = \"block\"\nlayers = 3",
      "nearest valid value is 2");
  add("ranks_not_allowed", "lr = 0.001",
      "lr = 0.001\n[parallelism]\nranks = 3\nallowed_ranks = [1, 2]", "nearest valid value is 2");
  add("allowed_twice", "lr = 0.001", "lr = 0.001\n[parallelism]\nallowed_ranks = [1, 2, 2]",
      "stands twice");
  add("srun_in_a_container", "lr = 0.001",
      "lr = 0.001\n[resources]\nlauncher = \"srun\"\ncontainer = \"img\"",
      "does not start ranks in");
  add("text_and_path", "text = \"debian:kjv\"", "text = \"debian:kjv\"\npath = \"d\"",
      "exactly one");
  add("neither_text_nor_path", "text = \"debian:kjv\"\n", "", "data.sources[0]: needs a text");
  add("no_source", "[[data.sources]]\nname = \"s\"\ntext = \"debian:kjv\"\n", "",
      "data.sources: required key is missing");
  add("source_named_twice", "text = \"debian:kjv\"",
      "text = \"debian:kjv\"\n[[data.sources]]\nname = \"s\"\npath = \"d\"", "used twice");
  add("source_without_name", "name = \"s\"\n", "", "data.sources[0].name: required key");
  add("small_vocabulary", "vocab_size = 260", "vocab_size = 256", "nearest valid value is 257");
  add("rows_without_common_factor",
      "dim = 16\nvocab_size = 260\nheads = 2\nhead_dim = 8\nmlstm_heads = 2\nmlstm_qk_dim = 4\n"
      "mlstm_v_dim = 8\nff_dim = 24",
      "dim = 65521\nvocab_size = 260\nheads = 1021\nhead_dim = 1022\nmlstm_heads = 2\n"
      "mlstm_qk_dim = 4\nmlstm_v_dim = 8\nff_dim = 262139",
      "2^40");
}

void add_sets(std::vector<BadSpec>* list) {
  const auto add = [&](const char* name, const char* path, const char* value, const char* expect) {
    list->push_back(set(name, path, value, expect));
  };
  add("set_zero_steps", "training.steps", "0", "--set training.steps: 0 is out of range");
  add("set_unknown", "training.step", "1", "nearest known key is \"training.steps\"");
  add("set_word_for_integer", "training.steps", "many", "is not a TOML value");
  add("set_nothing", "training.steps", "", "is not a TOML value");
  add("set_second_key", "training.steps", "1\nseq_len = 2", "is not a TOML value");
  add("set_absent_source", "data.sources[1].weight", "2", "has 1 elements");
  add("set_beyond_a_field", "training.steps.more", "2", "unknown key");
  add("set_index_of_no_list", "training.steps[0]", "2", "unknown key");
  add("set_bad_path", "training..steps", "2", "is not a field");
  add("set_long_path", "a.b.c.d.e.f.g.h.i", "2", "dotted parts");
  add("set_wrong_type", "optimizer.lr", "\"x\"", "must be a number");
}

}  // namespace

std::vector<BadSpec> bad_specs() {
  std::vector<BadSpec> list;
  add_bytes(&list);
  add_syntax(&list);
  add_types(&list);
  add_ranges(&list);
  add_relations(&list);
  add_sets(&list);
  return list;
}

}  // namespace swax::test
