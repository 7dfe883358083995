// Decoders of the Llama kind: rotary positions, rms_norm, gated MLPs.
#include "engine/model_folder/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/attrs.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

using Lines = std::vector<std::string>;

bool has_windows(const Decoder& d) {
  return std::any_of(d.windows.begin(), d.windows.end(), [](int64_t window) { return window > 0; });
}

bool all_alike(const Decoder& d) {
  return std::all_of(d.windows.begin(), d.windows.end(), [&](int64_t window) { return window == d.windows.front(); });
}

bool has_mlps(const Decoder& d) { return d.experts.count == 0 || d.experts.dense_blocks > 0; }
bool has_norms_of_qk(const Decoder& d) { return d.head_norms || d.qk_norms; }

LayerLine norm(const Decoder& d, std::string_view name) {
  LayerLine line(name, "rms_norm");
  line.with("eps", d.eps);
  if (d.norms_from_zero) line.with("offset", int64_t{1});
  return line;
}

LayerLine linear(std::string_view name, std::string_view units, bool bias) {
  return LayerLine(name, "dense").with("units", units).with("bias", bias);
}

/// The rotary layer of q, k or all heads; two with `if` where layers with a window have other angles. Returns the name
/// of the last one.
std::string add_rotary(const Decoder& d, Lines& lines, const std::string& name, const std::string& input,
                       std::string fields) {
  const bool differs = !d.local_rotary.empty();
  if (d.reads_documents) fields = ", inputs: [" + input + ", documents]" + fields;
  LayerLine line(name, "rotary");
  if (differs) line.with("if", "${not local}");
  lines.push_back(line.with_fields(fields).with_fields(d.rotary).text());
  if (!differs) return name;
  LayerLine local(name + "_local", "rotary");
  lines.push_back(local.with("if", "${local}").with_fields(fields).with_fields(d.local_rotary).text());
  return name + "_local";
}

/// q, k and v from one product, which is cut by heads.
std::string add_packed_heads(const Decoder& d, Lines& lines) {
  lines.push_back(linear("qkv", "${head * (heads + 2*kv_heads)}", d.qkv_bias).text());
  return add_rotary(d, lines, "turn", "qkv", R"(, heads: "${heads}", kv_heads: "${kv_heads}", packing: heads)");
}

/// Separate q, k and v, because norms come between the products and the rotation.
void add_normed_heads(const Decoder& d, Lines& lines, std::string& inputs) {
  const auto add = [&](const std::string& name, const std::string& heads) {
    LayerLine product = linear(name, "${head * " + heads + "}", d.qkv_bias);
    lines.push_back((name == "q" ? product : product.with("inputs", "norm1")).text());
    if (name == "v") return name;
    LayerLine normed = norm(d, name + "_norm");
    lines.push_back((d.head_norms ? normed.with("heads", "${" + heads + "}") : normed).text());
    return add_rotary(d, lines, name + "_turn", name + "_norm", fmt::format(", heads: \"${{{}}}\"", heads));
  };
  const std::string q = add("q", "heads"), k = add("k", "kv_heads"), v = add("v", "kv_heads");
  inputs = q + ", " + k + ", " + v;
}

/// A slice of the features of a layer's rows.
std::string features(std::string_view name, std::string_view input, std::string_view begin, std::string_view end) {
  LayerLine line(name, "slice");
  line.with("inputs", input).with("dim", int64_t{-1});
  if (!begin.empty()) line.with("begin", begin);
  if (!end.empty()) line.with("end", end);
  return line.text();
}

LayerLine reshape(std::string_view name, std::string_view shape) {
  return LayerLine(name, "reshape").with("shape", shape);
}

/// The rotated features follow the others in each head of q. All heads of k share theirs: adding the two, each
/// padded with zeros where the other has its features, joins them.
std::string add_latent_heads(const Decoder& d, Lines& lines) {
  if (d.latent.q_rank > 0) {
    lines.push_back(linear("q_down", "${q_rank}", d.qkv_bias).text());
    lines.push_back(norm(d, "q_norm").text());
  }
  const std::string up = d.latent.q_rank > 0 ? "q_up" : "q";
  lines.push_back(linear(up, "${heads * (nope + rope)}", false).text());
  const std::string q =
      add_rotary(d, lines, "q_turn", up, R"(, heads: "${heads}", rotary_dim: "${rope}", rotary_offset: "${nope}")");
  lines.push_back(linear("kv_down", "${kv_rank + rope}", d.qkv_bias).with("inputs", "norm1").text());
  lines.push_back(features("latent", "kv_down", "", "${kv_rank}"));
  lines.push_back(norm(d, "kv_norm").text());
  lines.push_back(linear("kv_up", "${heads * (nope + v_head)}", false).text());
  lines.push_back(reshape("kv_heads", R"([-1, "${heads}", "${nope + v_head}"])").text());
  lines.push_back(features("k_nope", "kv_heads", "", "${nope}"));
  lines.push_back(R"({name: k_wide, type: pad, dims: [-1], after: ["${rope}"]})");
  lines.push_back(features("k_rope", "kv_down", "${kv_rank}", ""));
  add_rotary(d, lines, "k_turn", "k_rope", ", heads: 1");
  lines.push_back(reshape("k_shared", R"([-1, 1, "${rope}"])").text());
  lines.push_back(R"({name: k_rope_wide, type: pad, dims: [-1], before: ["${nope}"]})");
  lines.emplace_back("{name: k_heads, type: add, inputs: [k_wide, k_rope_wide]}");
  lines.push_back(reshape("k", R"([-1, "${heads * (nope + rope)}"])").text());
  lines.push_back(features("v_heads", "kv_heads", "${nope}", ""));
  lines.push_back(reshape("v", R"([-1, "${heads * v_head}"])").text());
  return q + ", k, v";
}

void add_attention(const Decoder& d, Lines& lines) {
  std::string inputs;
  const bool is_packed = !has_norms_of_qk(d) && d.latent.kv_rank == 0;
  if (is_packed)
    inputs = add_packed_heads(d, lines);
  else if (d.latent.kv_rank > 0)
    inputs = add_latent_heads(d, lines);
  else
    add_normed_heads(d, lines, inputs);
  LayerLine attention("attn", "attention");
  if (d.reads_documents)
    attention.with("inputs", "[" + inputs + ", documents]").with("mask", "documents");
  else if (!is_packed)
    attention.with("inputs", "[" + inputs + "]");
  attention.with("heads", "${heads}");
  if (d.latent.kv_rank == 0) attention.with("kv_heads", "${kv_heads}");
  attention.with("causal", true);
  if (d.score_scale > 0) attention.with("scale", d.score_scale);
  if (d.score_softcap > 0) attention.with("softcap", d.score_softcap);
  if (d.has_sinks) attention.with("sinks", true);
  if (d.dropout > 0) attention.with("dropout", d.dropout);
  if (has_windows(d) && all_alike(d))
    attention.with("window", d.windows.front());
  else if (has_windows(d))
    attention.with("window", "${window}");
  lines.push_back(attention.text());
  lines.push_back(linear("proj", "${d}", d.proj_bias).text());
}

/// Adds a branch's norm after it, and its sum with what it began from.
void end_branch(const Decoder& d, Lines& lines, const std::string& last, const std::string& norm_name,
                const std::string& sum, const std::string& shortcut) {
  if (d.norms_after) lines.push_back(norm(d, norm_name).text());
  const std::string& branch = d.norms_after ? norm_name : last;
  lines.push_back(LayerLine(sum, "add").with("inputs", "[" + branch + ", " + shortcut + "]").text());
}

std::string experts_of(const Decoder& d) {
  LayerLine line("moe", "moe");
  line.with("experts", d.experts.count).with("top_k", d.experts.top_k).with("hidden", "${expert_hidden}");
  if (d.experts.activation != "swiglu") line.with("activation", d.experts.activation);
  if (d.experts.has_biases) line.with("bias", true);
  std::vector<std::string> router;
  if (d.experts.has_biases) router.emplace_back("bias: true");
  if (d.experts.has_sigmoids) router.emplace_back("score: sigmoid");
  if (!d.experts.normalizes) router.emplace_back("normalize: false");
  if (d.experts.scale != 1) router.push_back("scale: " + to_string(Value(d.experts.scale)));
  if (d.experts.groups > 1) {
    router.push_back("groups: " + std::to_string(d.experts.groups));
    router.push_back("top_groups: " + std::to_string(d.experts.top_groups));
  }
  if (d.experts.has_balance_bias) router.emplace_back("balance: bias");
  if (!router.empty()) line.with("router", "{" + join(router) + "}");
  return line.text();
}

/// A gated MLP. `prefix` begins the names of its layers.
void add_mlp(const Decoder& d, Lines& lines, const std::string& prefix, std::string_view hidden) {
  LayerLine gate = linear(prefix + "gate", hidden, d.mlp_bias);
  lines.push_back((prefix.empty() ? gate : gate.with("inputs", "norm2")).text());
  lines.push_back(LayerLine(prefix + "act", d.activation).text());
  lines.push_back(linear(prefix + "up", hidden, d.mlp_bias).with("inputs", "norm2").text());
  lines.push_back(LayerLine(prefix + "gated", "mul").with("inputs", "[" + prefix + "act, " + prefix + "up]").text());
  lines.push_back(linear(prefix + "down", "${d}", d.mlp_bias).text());
}

Lines block_of(const Decoder& d, bool has_experts) {
  Lines lines = {norm(d, "norm1").text()};
  add_attention(d, lines);
  end_branch(d, lines, "proj", "post1", "sum1", "input");
  lines.push_back(norm(d, "norm2").text());
  if (!has_experts) {
    add_mlp(d, lines, "", "${hidden}");
    end_branch(d, lines, "down", "post2", "sum2", "sum1");
    return lines;
  }
  lines.push_back(experts_of(d));
  if (d.experts.shared_hidden > 0) {
    add_mlp(d, lines, "shared_", "${shared_hidden}");
    lines.emplace_back("{name: experts, type: add, inputs: [moe, shared_down]}");
  }
  end_branch(d, lines, d.experts.shared_hidden > 0 ? "experts" : "moe", "post2", "sum2", "sum1");
  return lines;
}

/// If all blocks are equal, one is repeated; otherwise each is listed with its differences.
void add_blocks(const Decoder& d, Lines& network) {
  if (d.experts.dense_blocks > 0) {
    for (int64_t i = 0; i < d.layers; ++i)
      network.push_back(
          fmt::format("{{module: {}, name: h.{}}}", i < d.experts.dense_blocks ? "dense_block" : "block", i));
    return;
  }
  if (all_alike(d)) {
    network.emplace_back(R"({module: block, name: h, repeat: "${layers}"})");
    return;
  }
  for (int64_t i = 0; i < d.layers; ++i) {
    const int64_t window = d.windows[static_cast<size_t>(i)];
    const std::string local = d.local_rotary.empty() || window == 0 ? "" : ", local: true";
    const std::string with = window == 0 ? "" : fmt::format(", with: {{window: {}{}}}", window, local);
    network.push_back(fmt::format("{{module: block, name: h.{}{}}}", i, with));
  }
}

Lines network_of(const Decoder& d) {
  Lines network = {LayerLine("table", "embedding").with("vocab", "${vocab}").with("units", "${d}").text()};
  if (d.embedding_scale != 1) network.push_back(LayerLine("scaled", "scale").with("factor", d.embedding_scale).text());
  add_blocks(d, network);
  network.push_back(norm(d, "norm").text());
  LayerLine head = linear("head", "${vocab}", false);
  if (d.is_tied) head.with("share", "table");
  network.push_back(head.text());
  if (d.logit_softcap > 0) network.push_back(LayerLine("logits", "softcap").with("cap", d.logit_softcap).text());
  return network;
}

Lines products_of(const Decoder& d) {
  Lines names = {"qkv"};
  if (has_norms_of_qk(d)) names = {"q", "k", "v"};
  if (d.latent.kv_rank > 0) names = {"q", "kv_down", "kv_up"};
  if (d.latent.q_rank > 0) names = {"q_down", "q_up", "kv_down", "kv_up"};
  names.emplace_back("proj");
  if (has_mlps(d)) names.insert(names.end(), {"gate", "up", "down"});
  if (d.experts.shared_hidden > 0) names.insert(names.end(), {"shared_gate", "shared_up", "shared_down"});
  for (std::string& name : names) name = "h.*." + name;
  return names;
}

/// The sizes that expressions of the network use.
void add_vars(const Decoder& d, ModelJob& job) {
  const auto var = [&](const char* name, int64_t value) { job.vars.emplace_back(name, std::to_string(value)); };
  if (all_alike(d) && d.experts.dense_blocks == 0) var("layers", d.layers);
  var("heads", d.heads);
  if (d.latent.kv_rank == 0) {
    var("kv_heads", d.kv_heads);
    var("head", d.head_dim);
  } else {
    if (d.latent.q_rank > 0) var("q_rank", d.latent.q_rank);
    var("kv_rank", d.latent.kv_rank);
    var("nope", d.latent.nope);
    var("rope", d.latent.rope);
    var("v_head", d.latent.v_head_dim);
  }
  var("d", d.width);
  if (has_mlps(d)) var("hidden", d.hidden);
  if (d.experts.count > 0) var("expert_hidden", d.experts.hidden);
  if (d.experts.shared_hidden > 0) var("shared_hidden", d.experts.shared_hidden);
  var("vocab", d.vocab);
  var("length", std::min<int64_t>(d.positions, 1024));
}

}  // namespace

ModelJob decoder_job(Decoder d, const Finetune& tuning) {
  d.reads_documents = tuning.trains_adapters();
  if (tuning.task == FinetuneTask::dpo) d.dropout = 0;  // as Finetune::attention_dropout
  ModelJob job{.title = d.title, .map = d.map, .is_decoder = true};
  job.products = products_of(d);
  add_vars(d, job);
  if (d.experts.dense_blocks > 0) job.modules.push_back({"dense_block", block_of(d, false)});
  job.modules.push_back({"block", block_of(d, d.experts.count > 0)});
  if (!all_alike(d)) job.modules.back().args.emplace_back("window: 0");
  if (!all_alike(d) && !d.local_rotary.empty()) job.modules.back().args.emplace_back("local: false");
  job.network = network_of(d);
  job.no_decay = {"*norm*.weight", "*post*.weight", "*.bias"};
  job.recompute = {"h.*.norm1", "h.*.norm2"};
  if (has_mlps(d)) job.recompute.insert(job.recompute.end(), {"h.*.act", "h.*.gated"});
  if (!d.norms_after) std::erase(job.no_decay, "*post*.weight");
  if (!d.qkv_bias && !d.proj_bias && !d.mlp_bias) std::erase(job.no_decay, "*.bias");
  if (d.experts.has_biases) job.no_decay.emplace_back("*.moe.*_bias");
  if (d.has_sinks) job.no_decay.emplace_back("*.sinks");
  return job;
}

}  // namespace trainctl
