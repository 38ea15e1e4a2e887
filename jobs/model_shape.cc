#include "jobs/model_shape.h"

#include <algorithm>
#include <cmath>

#include "proto/base/hash.h"
#include "proto/base/rng.h"
#include "proto/base/text.h"

namespace swax {
namespace {

struct TableBuilder {
  std::vector<TensorInfo>& tensors;
  int unit = 0;
  std::string prefix;  // "layers.3."

  void add(const char* name, std::vector<int64_t> shape, InitRule init, bool decay) {
    tensors.push_back({.name = prefix + name,
                       .shape = std::move(shape),
                       .init = init,
                       .decay = decay,
                       .unit = unit});
  }
  void matrix(const char* name, int64_t rows, int64_t columns, InitRule init) {
    add(name, {rows, columns}, init, true);
  }
  void vector(const char* name, int64_t length, InitRule init) { add(name, {length}, init, false); }
};

void add_attention(TableBuilder& table, const ModelShape& m) {
  const int64_t q = m.heads * m.head_dim;
  const int64_t kv = m.kv_heads * m.head_dim;
  table.matrix("attn.wq", q, m.dim, InitRule::kNormalSmall);
  table.matrix("attn.wk", kv, m.dim, InitRule::kNormalSmall);
  table.matrix("attn.wv", kv, m.dim, InitRule::kNormalSmall);
  table.matrix("attn.wo", m.dim, q, InitRule::kNormalOut);
}

void add_mlstm(TableBuilder& table, const ModelShape& m) {
  const int64_t qk = m.mlstm_heads * m.mlstm_qk;
  const int64_t v = m.mlstm_heads * m.mlstm_v;
  table.matrix("mlstm.wq", qk, m.dim, InitRule::kNormalSmall);
  table.matrix("mlstm.wk", qk, m.dim, InitRule::kNormalSmall);
  table.matrix("mlstm.wv", v, m.dim, InitRule::kNormalSmall);
  table.matrix("mlstm.wo_gate", v, m.dim, InitRule::kZero);
  table.matrix("mlstm.wi", m.mlstm_heads, m.dim, InitRule::kZero);
  table.matrix("mlstm.wf", m.mlstm_heads, m.dim, InitRule::kZero);
  table.vector("mlstm.bi", m.mlstm_heads, InitRule::kInputGateBias);
  table.vector("mlstm.bf", m.mlstm_heads, InitRule::kForgetGateBias);
  table.vector("mlstm.mhnorm.weight", v, InitRule::kOne);
  table.matrix("mlstm.w_out", m.dim, v, InitRule::kNormalOut);
}

std::vector<TensorInfo> tensor_table(const ModelShape& m) {
  std::vector<TensorInfo> tensors;
  TableBuilder table{tensors, 0, ""};
  table.add("embed.weight", {m.vocab, m.dim}, InitRule::kNormalSmall, false);
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    table.unit = static_cast<int>(layer) + 1;
    table.prefix = "layers." + to_text(layer) + ".";
    table.vector("norm_mix.weight", m.dim, InitRule::kOne);
    if (m.kinds[static_cast<size_t>(layer)] == LayerKind::kAttention) {
      add_attention(table, m);
    } else {
      add_mlstm(table, m);
    }
    table.vector("norm_mlp.weight", m.dim, InitRule::kOne);
    table.matrix("mlp.w_gate", m.ff, m.dim, InitRule::kNormalSmall);
    table.matrix("mlp.w_up", m.ff, m.dim, InitRule::kNormalSmall);
    table.matrix("mlp.w_down", m.dim, m.ff, InitRule::kNormalOut);
  }
  table.unit = static_cast<int>(m.layers) + 1;
  table.prefix.clear();
  table.vector("norm_out.weight", m.dim, InitRule::kOne);
  table.matrix("head.weight", m.vocab, m.dim, InitRule::kNormalSmall);
  return tensors;
}

Status positive(const char* field, int64_t value) {
  if (value >= 1) return ok();
  return invalid_argument(std::string(field) + "=" + to_text(value) + ": must be >= 1");
}

Status read_kinds(const pb::Model& model, ModelShape* m) {
  if (model.pattern().empty()) return invalid_argument("model.pattern: is empty");
  for (int64_t layer = 0; layer < m->layers; ++layer) {
    const char letter = model.pattern()[static_cast<size_t>(layer) % model.pattern().size()];
    if (letter != 'S' && letter != 'M')
      return invalid_argument("model.pattern=\"" + printable(model.pattern()) +
                              "\": layer kinds are S and M");
    m->kinds.push_back(static_cast<LayerKind>(letter));
  }
  return ok();
}

Status check_mlstm(const ModelShape& m) {
  if (std::find(m.kinds.begin(), m.kinds.end(), LayerKind::kMlstm) == m.kinds.end()) return ok();
  SWAX_TRY(positive("model.mlstm_heads", m.mlstm_heads));
  SWAX_TRY(positive("model.mlstm_qk_dim", m.mlstm_qk));
  SWAX_TRY(positive("model.mlstm_v_dim", m.mlstm_v));
  return positive("model.mlstm_chunk", m.mlstm_chunk);
}

Status check_shape(const ModelShape& m) {
  SWAX_TRY(positive("model.layers", m.layers));
  SWAX_TRY(positive("model.dim", m.dim));
  SWAX_TRY(positive("model.vocab_size", m.vocab));
  SWAX_TRY(positive("model.heads", m.heads));
  SWAX_TRY(positive("model.ff_dim", m.ff));
  if (m.head_dim < 2 || m.head_dim % 2 != 0)
    return invalid_argument("model.head_dim=" + to_text(m.head_dim) + ": must be even and >= 2");
  if (m.heads % m.kv_heads != 0)
    return invalid_argument("model.heads=" + to_text(m.heads) +
                            ": must be a multiple of kv_heads=" + to_text(m.kv_heads));
  return ok();
}

double init_sigma(InitRule rule, const ModelShape& m) {
  const double dim = static_cast<double>(m.dim);
  if (rule == InitRule::kNormalSmall) return std::sqrt(2.0 / (5.0 * dim));
  return 2.0 / (static_cast<double>(m.layers) * std::sqrt(dim));
}

}  // namespace

int64_t TensorInfo::elements() const {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

int64_t ModelShape::parameters() const {
  int64_t sum = 0;
  for (const TensorInfo& t : tensors) sum += t.elements();
  return sum;
}

std::vector<int> ModelShape::unit_tensors(int unit) const {
  std::vector<int> indices;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].unit == unit) indices.push_back(static_cast<int>(i));
  }
  return indices;
}

int ModelShape::find(const std::string& name) const {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

Result<ModelShape> model_shape(const pb::Model& model) {
  ModelShape m{.layers = model.layers(),
               .dim = model.dim(),
               .vocab = model.vocab_size(),
               .heads = model.heads(),
               .kv_heads = model.kv_heads() == 0 ? model.heads() : model.kv_heads(),
               .head_dim = model.head_dim(),
               .mlstm_heads = model.mlstm_heads(),
               .mlstm_qk = model.mlstm_qk_dim(),
               .mlstm_v = model.mlstm_v_dim(),
               .ff = model.ff_dim(),
               .mlstm_chunk = model.mlstm_chunk(),
               .rope_base = model.rope_base(),
               .norm_eps = model.norm_eps(),
               .gate_cap = model.gate_cap(),
               .logit_cap = model.logit_cap(),
               .doc_reset = !model.has_doc_reset() || model.doc_reset(),
               .kinds = {},
               .tensors = {}};
  SWAX_TRY(check_shape(m));
  SWAX_TRY(read_kinds(model, &m));
  SWAX_TRY(check_mlstm(m));
  m.tensors = tensor_table(m);
  return m;
}

float init_value(const TensorInfo& t, const ModelShape& m, uint64_t seed, int64_t element) {
  switch (t.init) {
    case InitRule::kZero:
      return 0.0F;
    case InitRule::kOne:
      return 1.0F;
    case InitRule::kInputGateBias:
      return -10.0F;
    case InitRule::kForgetGateBias: {
      const int64_t heads = t.elements();
      if (heads == 1) return 3.0F;
      return static_cast<float>(3.0 + 3.0 * static_cast<double>(element) /
                                          static_cast<double>(heads - 1));
    }
    case InitRule::kNormalSmall:
    case InitRule::kNormalOut:
      break;
  }
  const double normal = normal_at(seed, xxh3_64(t.name), static_cast<uint64_t>(element));
  return static_cast<float>(normal * init_sigma(t.init, m));
}

double forward_flops_per_token(const ModelShape& m, int64_t window, int64_t seq_len) {
  const double length = static_cast<double>(seq_len);
  const double w = static_cast<double>(std::min(window, seq_len));
  const double keys = w - w * (w - 1.0) / (2.0 * length);  // mean number of visible keys
  const double d = static_cast<double>(m.dim);
  const double q = static_cast<double>(m.heads * m.head_dim);
  const double kv = static_cast<double>(m.kv_heads * m.head_dim);
  const double attention = 4.0 * d * (q + kv) + 4.0 * q * keys;

  const double nh = static_cast<double>(m.mlstm_heads);
  const double dk = static_cast<double>(m.mlstm_qk);
  const double dv = static_cast<double>(m.mlstm_v);
  const double chunk = static_cast<double>(std::max<int64_t>(1, m.mlstm_chunk));
  const double causal = (1.0 + 1.0 / chunk) / 2.0;  // share of a chunk's square that is computed
  const double projections = 2.0 * d * nh * (2.0 * dk + 3.0 * dv + 2.0);
  const double core = nh * (4.0 * dk * dv * (1.0 + 1.0 / (2.0 * chunk)) +
                            2.0 * causal * chunk * (dk + dv) + 4.0 * dk);

  double sum = 2.0 * d * static_cast<double>(m.vocab);  // head
  for (const LayerKind kind : m.kinds) {
    sum += kind == LayerKind::kAttention ? attention : projections + core;
    sum += 6.0 * d * static_cast<double>(m.ff);
  }
  return sum;
}

}  // namespace swax
