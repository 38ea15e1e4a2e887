#include "tests/reference/model.h"

#include <utility>

#include "tests/reference/attention.h"
#include "tests/reference/linear.h"
#include "tests/reference/loss.h"
#include "tests/reference/mlp.h"
#include "tests/reference/mlstm.h"
#include "tests/reference/norm.h"
#include "tests/reference/rope.h"

namespace swax::reference {

int64_t TensorShape::elements() const {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

namespace {

bool is_attention(const ModelSizes& s, int64_t layer) {
  const char kind = s.pattern[static_cast<size_t>(layer) % s.pattern.size()];
  SWAX_CHECK(kind == 'S' || kind == 'M');
  return kind == 'S';
}

std::string layer_name(int64_t layer) { return "layers." + std::to_string(layer) + "."; }

// What the backward of one layer needs from its forward.
struct LayerCache {
  Vec x_TD, normed_TD;              // input and its norm
  Vec middle_TD, mlp_in_TD;         // after the mixer, and its norm
  Vec q, k, v;                      // S: after rotation
  Vec mixed;                        // S: attention output; M: head norm output (gated)
  Vec i_TH, f_TH, h_THV, gate_THV;  // M
};

// Runs one sequence; holds views only.
class Pass {
 public:
  Pass(const ModelSizes& s, const Tensors& weights, const ModelInput& in)
      : s_(s), weights_(weights), in_(in), tokens_(static_cast<int64_t>(in.tokens_T.size())) {
    SWAX_CHECK(in.tokens_T.size() == in.targets_T.size());
  }

  Vec layer_forward(int64_t layer, View x_TD, LayerCache& c) const;
  Vec layer_backward(int64_t layer, const LayerCache& c, View dy_TD, Tensors& grads) const;
  View weight(const std::string& name) const {
    const auto found = weights_.find(name);
    SWAX_CHECK(found != weights_.end());
    return found->second;
  }

 private:
  Vec project(View x_TD, const std::string& name, int64_t in_dim) const {
    return linear(x_TD, weight(name), in_dim, in_.canary);
  }
  // Stores dw and adds dx to the sum.
  void project_backward(View x, const std::string& name, View dy, int64_t in_dim, Vec& dx_sum,
                        Tensors& grads) const {
    LinearGrad g = linear_backward(x, weight(name), dy, in_dim, in_.canary);
    grads[name] = std::move(g.dw_OI);
    add_to(dx_sum, g.dx_TI);
  }
  Vec gate(View x_TD, const std::string& w, const std::string& b) const {
    return soft_cap(add_bias(project(x_TD, w, s_.dim), weight(b)), s_.gate_cap);
  }
  MlpWeights mlp_weights(const std::string& p) const {
    return {.gate_FD = weight(p + "mlp.w_gate"),
            .up_FD = weight(p + "mlp.w_up"),
            .down_DF = weight(p + "mlp.w_down")};
  }
  AttentionSizes attention_sizes() const {
    return {.tokens = tokens_,
            .q_heads = s_.q_heads,
            .kv_heads = s_.kv_heads,
            .dim = s_.head_dim,
            .window = in_.window};
  }
  RopeSizes rope_sizes(int64_t heads) const {
    return {.tokens = tokens_, .heads = heads, .dim = s_.head_dim, .base = s_.rope_base};
  }
  MlstmSizes mlstm_sizes() const {
    return {.tokens = tokens_, .heads = s_.mlstm_heads, .qk_dim = s_.qk_dim, .v_dim = s_.v_dim};
  }
  HeadNormSizes head_norm_sizes() const {
    return {.tokens = tokens_, .heads = s_.mlstm_heads, .dim = s_.v_dim};
  }
  MlstmInput mlstm_input(const LayerCache& c) const {
    return {.q_THK = c.q,
            .k_THK = c.k,
            .v_THV = c.v,
            .i_TH = c.i_TH,
            .f_TH = c.f_TH,
            .reset_T = in_.reset_T,
            .initial = nullptr,
            .eps = s_.mlstm_eps,
            .m0 = in_.m0};
  }

  Vec attention_forward(const std::string& p, LayerCache& c) const;
  Vec attention_layer_backward(const std::string& p, const LayerCache& c, View dy,
                               Tensors& grads) const;
  Vec mlstm_forward(const std::string& p, LayerCache& c) const;
  Vec mlstm_layer_backward(const std::string& p, const LayerCache& c, View dy,
                           Tensors& grads) const;

  const ModelSizes& s_;
  const Tensors& weights_;
  const ModelInput& in_;
  int64_t tokens_;
};

Vec Pass::attention_forward(const std::string& p, LayerCache& c) const {
  c.q = rope(rope_sizes(s_.q_heads), project(c.normed_TD, p + "attn.wq", s_.dim));
  c.k = rope(rope_sizes(s_.kv_heads), project(c.normed_TD, p + "attn.wk", s_.dim));
  c.v = project(c.normed_TD, p + "attn.wv", s_.dim);
  c.mixed = attention(attention_sizes(), c.q, c.k, c.v, in_.reset_T, in_.canary).o_THK;
  return project(c.mixed, p + "attn.wo", s_.q_heads * s_.head_dim);
}

// Gradient of the normed input of the layer.
Vec Pass::attention_layer_backward(const std::string& p, const LayerCache& c, View dy,
                                   Tensors& grads) const {
  Vec d_mixed(c.mixed.size(), 0.0);
  project_backward(c.mixed, p + "attn.wo", dy, s_.q_heads * s_.head_dim, d_mixed, grads);
  const AttentionGrad g =
      attention_backward(attention_sizes(), c.q, c.k, c.v, in_.reset_T, d_mixed, in_.canary);
  Vec d_normed(c.normed_TD.size(), 0.0);
  const Vec dq = rope_inverse(rope_sizes(s_.q_heads), g.dq_THK);
  const Vec dk = rope_inverse(rope_sizes(s_.kv_heads), g.dk_THK);
  project_backward(c.normed_TD, p + "attn.wq", dq, s_.dim, d_normed, grads);
  project_backward(c.normed_TD, p + "attn.wk", dk, s_.dim, d_normed, grads);
  project_backward(c.normed_TD, p + "attn.wv", g.dv_THK, s_.dim, d_normed, grads);
  return d_normed;
}

Vec Pass::mlstm_forward(const std::string& p, LayerCache& c) const {
  c.q = project(c.normed_TD, p + "mlstm.wq", s_.dim);
  c.k = project(c.normed_TD, p + "mlstm.wk", s_.dim);
  c.v = project(c.normed_TD, p + "mlstm.wv", s_.dim);
  c.i_TH = gate(c.normed_TD, p + "mlstm.wi", p + "mlstm.bi");
  c.f_TH = gate(c.normed_TD, p + "mlstm.wf", p + "mlstm.bf");
  c.gate_THV = project(c.normed_TD, p + "mlstm.wo_gate", s_.dim);
  c.h_THV = mlstm_chunkwise(mlstm_sizes(), mlstm_input(c), in_.chunk, in_.canary).h_THV;
  c.mixed = head_norm(head_norm_sizes(), c.h_THV, weight(p + "mlstm.mhnorm.weight"), c.gate_THV,
                      s_.norm_eps)
                .y_THV;
  return project(c.mixed, p + "mlstm.w_out", s_.mlstm_heads * s_.v_dim);
}

Vec Pass::mlstm_layer_backward(const std::string& p, const LayerCache& c, View dy,
                               Tensors& grads) const {
  Vec d_mixed(c.mixed.size(), 0.0);
  project_backward(c.mixed, p + "mlstm.w_out", dy, s_.mlstm_heads * s_.v_dim, d_mixed, grads);
  HeadNormGrad norm =
      head_norm_backward(head_norm_sizes(), c.h_THV, weight(p + "mlstm.mhnorm.weight"), c.gate_THV,
                         d_mixed, s_.norm_eps);
  grads[p + "mlstm.mhnorm.weight"] = std::move(norm.dw_HV);
  const MlstmGrad g =
      mlstm_backward(mlstm_sizes(), mlstm_input(c), in_.chunk, norm.dh_THV, nullptr, in_.canary);
  const Vec di = soft_cap_backward(c.i_TH, g.di_TH, s_.gate_cap, in_.canary);
  const Vec df = soft_cap_backward(c.f_TH, g.df_TH, s_.gate_cap, in_.canary);
  grads[p + "mlstm.bi"] = sum_over_tokens(di, s_.mlstm_heads);
  grads[p + "mlstm.bf"] = sum_over_tokens(df, s_.mlstm_heads);
  Vec d_normed(c.normed_TD.size(), 0.0);
  const std::pair<const char*, View> parts[] = {{"wq", g.dq_THK}, {"wk", g.dk_THK},
                                                {"wv", g.dv_THV}, {"wi", di},
                                                {"wf", df},       {"wo_gate", norm.dgate_THV}};
  for (const auto& [name, d] : parts) {
    project_backward(c.normed_TD, p + "mlstm." + name, d, s_.dim, d_normed, grads);
  }
  return d_normed;
}

Vec Pass::layer_forward(int64_t layer, View x_TD, LayerCache& c) const {
  const std::string p = layer_name(layer);
  c.x_TD.assign(x_TD.begin(), x_TD.end());
  c.normed_TD = rms_norm(x_TD, weight(p + "norm_mix.weight"), s_.norm_eps).y_TD;
  c.middle_TD = is_attention(s_, layer) ? attention_forward(p, c) : mlstm_forward(p, c);
  add_to(c.middle_TD, x_TD);
  c.mlp_in_TD = rms_norm(c.middle_TD, weight(p + "norm_mlp.weight"), s_.norm_eps).y_TD;
  Vec y_TD = mlp(c.mlp_in_TD, mlp_weights(p), s_.dim, in_.canary);
  add_to(y_TD, c.middle_TD);
  return y_TD;
}

Vec Pass::layer_backward(int64_t layer, const LayerCache& c, View dy_TD, Tensors& grads) const {
  const std::string p = layer_name(layer);
  MlpGrad m = mlp_backward(c.mlp_in_TD, mlp_weights(p), dy_TD, s_.dim, in_.canary);
  grads[p + "mlp.w_gate"] = std::move(m.dgate_FD);
  grads[p + "mlp.w_up"] = std::move(m.dup_FD);
  grads[p + "mlp.w_down"] = std::move(m.ddown_DF);
  RmsNormGrad n2 = rms_norm_backward(c.middle_TD, weight(p + "norm_mlp.weight"), m.dx_TD,
                                     s_.norm_eps, in_.canary);
  grads[p + "norm_mlp.weight"] = std::move(n2.dw_D);
  Vec d_middle(dy_TD.begin(), dy_TD.end());
  add_to(d_middle, n2.dx_TD);
  const Vec d_normed = is_attention(s_, layer) ? attention_layer_backward(p, c, d_middle, grads)
                                               : mlstm_layer_backward(p, c, d_middle, grads);
  RmsNormGrad n1 =
      rms_norm_backward(c.x_TD, weight(p + "norm_mix.weight"), d_normed, s_.norm_eps, in_.canary);
  grads[p + "norm_mix.weight"] = std::move(n1.dw_D);
  add_to(d_middle, n1.dx_TD);
  return d_middle;
}

struct Forward {
  ModelOut out;
  std::vector<LayerCache> caches;
  Vec head_in_TD;
  HeadLossOut head;
};
Forward run_forward(const ModelSizes& s, const Pass& pass, const ModelInput& in) {
  Forward f;
  f.caches.resize(static_cast<size_t>(s.layers));
  Vec x = embedding(pass.weight("embed.weight"), in.tokens_T, s.dim);
  f.out.hidden_TD.push_back(x);
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    x = pass.layer_forward(layer, x, f.caches[static_cast<size_t>(layer)]);
    f.out.hidden_TD.push_back(x);
  }
  f.head_in_TD = rms_norm(x, pass.weight("norm_out.weight"), s.norm_eps).y_TD;
  f.head = linear_cross_entropy(
      f.head_in_TD, pass.weight("head.weight"), in.targets_T,
      {.cap = s.logit_cap, .z_coef = 0.0, .count = in.loss_count, .canary = in.canary});
  f.out.loss = f.head.loss;
  f.out.count = f.head.count;
  f.out.logits_TV = f.head.logits_TV;
  return f;
}

}  // namespace

std::vector<TensorShape> model_tensors(const ModelSizes& s) {
  std::vector<TensorShape> all;
  all.push_back({"embed.weight", {s.vocab, s.dim}});
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    const std::string p = layer_name(layer);
    all.push_back({p + "norm_mix.weight", {s.dim}});
    if (is_attention(s, layer)) {
      all.push_back({p + "attn.wq", {s.q_heads * s.head_dim, s.dim}});
      all.push_back({p + "attn.wk", {s.kv_heads * s.head_dim, s.dim}});
      all.push_back({p + "attn.wv", {s.kv_heads * s.head_dim, s.dim}});
      all.push_back({p + "attn.wo", {s.dim, s.q_heads * s.head_dim}});
    } else {
      const int64_t keys = s.mlstm_heads * s.qk_dim, values = s.mlstm_heads * s.v_dim;
      all.push_back({p + "mlstm.wq", {keys, s.dim}});
      all.push_back({p + "mlstm.wk", {keys, s.dim}});
      all.push_back({p + "mlstm.wv", {values, s.dim}});
      all.push_back({p + "mlstm.wo_gate", {values, s.dim}});
      all.push_back({p + "mlstm.wi", {s.mlstm_heads, s.dim}});
      all.push_back({p + "mlstm.bi", {s.mlstm_heads}});
      all.push_back({p + "mlstm.wf", {s.mlstm_heads, s.dim}});
      all.push_back({p + "mlstm.bf", {s.mlstm_heads}});
      all.push_back({p + "mlstm.mhnorm.weight", {values}});
      all.push_back({p + "mlstm.w_out", {s.dim, values}});
    }
    all.push_back({p + "norm_mlp.weight", {s.dim}});
    all.push_back({p + "mlp.w_gate", {s.ff_dim, s.dim}});
    all.push_back({p + "mlp.w_up", {s.ff_dim, s.dim}});
    all.push_back({p + "mlp.w_down", {s.dim, s.ff_dim}});
  }
  all.push_back({"norm_out.weight", {s.dim}});
  all.push_back({"head.weight", {s.vocab, s.dim}});
  return all;
}

ModelOut model_forward(const ModelSizes& s, const Tensors& weights, const ModelInput& in) {
  return run_forward(s, Pass(s, weights, in), in).out;
}

ModelGrad model_backward(const ModelSizes& s, const Tensors& weights, const ModelInput& in) {
  const Pass pass(s, weights, in);
  Forward f = run_forward(s, pass, in);
  ModelGrad result;
  result.grads["head.weight"] = std::move(f.head.dw_VD);
  RmsNormGrad norm = rms_norm_backward(f.out.hidden_TD.back(), pass.weight("norm_out.weight"),
                                       f.head.dx_TD, s.norm_eps, in.canary);
  result.grads["norm_out.weight"] = std::move(norm.dw_D);
  Vec dx = std::move(norm.dx_TD);
  for (int64_t layer = s.layers - 1; layer >= 0; --layer) {
    dx = pass.layer_backward(layer, f.caches[static_cast<size_t>(layer)], dx, result.grads);
  }
  result.grads["embed.weight"] = embedding_backward(dx, in.tokens_T, s.vocab, s.dim);
  result.out = std::move(f.out);
  return result;
}

}  // namespace swax::reference
