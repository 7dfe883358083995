// See the header.
#include "engine/model_folder/decoder.h"

#include <fmt/format.h>

#include <algorithm>

namespace trainctl {
namespace {

using Lines = std::vector<std::string>;

bool has_windows(const Decoder& d) {
  return std::any_of(d.windows.begin(), d.windows.end(), [](int64_t window) { return window > 0; });
}

bool all_alike(const Decoder& d) {
  return std::all_of(d.windows.begin(), d.windows.end(), [&](int64_t window) { return window == d.windows.front(); });
}

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

/// q, k and v apart, because norms come between the products and the angles.
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

void add_attention(const Decoder& d, Lines& lines) {
  std::string inputs;
  const bool is_packed = !has_norms_of_qk(d);
  if (is_packed)
    inputs = add_packed_heads(d, lines);
  else
    add_normed_heads(d, lines, inputs);
  LayerLine attention("attn", "attention");
  if (d.reads_documents)
    attention.with("inputs", "[" + inputs + ", documents]").with("mask", "documents");
  else if (!is_packed)
    attention.with("inputs", "[" + inputs + "]");
  attention.with("heads", "${heads}").with("kv_heads", "${kv_heads}").with("causal", true);
  if (d.score_scale > 0) attention.with("scale", d.score_scale);
  if (d.score_softcap > 0) attention.with("softcap", d.score_softcap);
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
  line.with("experts", d.experts.count).with("top_k", d.experts.top_k).with("hidden", "${hidden}");
  if (!d.experts.normalizes) line.with("normalize", false);
  return line.text();
}

Lines block_of(const Decoder& d) {
  Lines lines = {norm(d, "norm1").text()};
  add_attention(d, lines);
  end_branch(d, lines, "proj", "post1", "sum1", "input");
  lines.push_back(norm(d, "norm2").text());
  if (d.experts.count > 0) {
    lines.push_back(experts_of(d));
    end_branch(d, lines, "moe", "post2", "sum2", "sum1");
    return lines;
  }
  lines.push_back(linear("gate", "${hidden}", d.mlp_bias).text());
  lines.push_back(LayerLine("act", d.activation).text());
  lines.push_back(linear("up", "${hidden}", d.mlp_bias).with("inputs", "norm2").text());
  lines.push_back(LayerLine("gated", "mul").with("inputs", "[act, up]").text());
  lines.push_back(linear("down", "${d}", d.mlp_bias).text());
  end_branch(d, lines, "down", "post2", "sum2", "sum1");
  return lines;
}

/// If all blocks are alike, one is repeated; otherwise each is listed with its differences.
void add_blocks(const Decoder& d, Lines& network) {
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

}  // namespace

ModelJob decoder_job(Decoder d, const Finetune& tuning) {
  d.reads_documents = tuning.trains_adapters();
  ModelJob job{.title = d.title, .map = d.map, .is_decoder = true, .reads_documents = d.reads_documents};
  job.products = has_norms_of_qk(d) ? Lines{"h.*.q", "h.*.k", "h.*.v"} : Lines{"h.*.qkv"};
  job.products.emplace_back("h.*.proj");
  if (d.experts.count == 0)
    for (const char* product : {"h.*.gate", "h.*.up", "h.*.down"}) job.products.emplace_back(product);
  const auto var = [&](const char* name, int64_t value) { job.vars.emplace_back(name, std::to_string(value)); };
  if (all_alike(d)) var("layers", d.layers);
  var("heads", d.heads);
  var("kv_heads", d.kv_heads);
  var("head", d.head_dim);
  var("d", d.width);
  var("hidden", d.experts.count > 0 ? d.experts.hidden : d.hidden);
  var("vocab", d.vocab);
  var("length", std::min<int64_t>(d.positions, 1024));
  if (!all_alike(d)) job.block_args.emplace_back("window: 0");
  if (!all_alike(d) && !d.local_rotary.empty()) job.block_args.emplace_back("local: false");
  job.block = block_of(d);
  job.network = network_of(d);
  job.no_decay = {"*norm*.weight", "*post*.weight", "*.bias"};
  job.recompute = {"h.*.norm1", "h.*.norm2"};
  if (d.experts.count == 0) job.recompute.insert(job.recompute.end(), {"h.*.act", "h.*.gated"});
  if (!d.norms_after) std::erase(job.no_decay, "*post*.weight");
  if (!d.qkv_bias && !d.proj_bias && !d.mlp_bias) std::erase(job.no_decay, "*.bias");
  return job;
}

}  // namespace trainctl
