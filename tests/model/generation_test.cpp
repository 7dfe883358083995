// Tests of the graphs of text generation: which ops replace which, and the layers that are refused.
#include "engine/model/generation.h"

#include <doctest/doctest.h>

#include "engine/base/error.h"
#include "engine/spec/parse.h"
#include "tests/model/built.h"

using namespace trainctl;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

constexpr GenerationSize kSize{.rows = 2, .positions = 16};

constexpr const char* kTokens =
    "{type: random, shape: [8], dtype: i32, classes: 11, label_shape: [8], label_dtype: i32, batch: 2}";
constexpr const char* kPacked = "{type: chat, path: a.jsonl, tokenizer: a, length: 8, pack: true, batch: 2}";

JobSpec job_of(const std::string& network, const std::string& dataset = kTokens) {
  return parse_job("dataset: " + dataset + "\nnetwork:\n" + network, "job.yaml");
}

/// A decoder of one block with these layers between the embedding and the logits.
std::string decoder(const std::string& layers) {
  return "  - {name: table, type: embedding, vocab: 11, units: 8}\n" + layers +
         "  - {name: head, type: dense, units: 11, bias: false}\n";
}

constexpr const char* kBlock =
    "  - {name: qkv, type: dense, units: 24, bias: false}\n"
    "  - {name: turn, type: rotary, heads: 2, packing: heads}\n"
    "  - {name: attn, type: attention, heads: 2, causal: true}\n";

std::string refusal(const std::string& layers) {
  try {
    decode_graph(job_of(decoder(layers)), kSize, "head");
  } catch (const SpecError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("attention reads caches, and positions come from an input") {
  const JobSpec job =
      job_of(decoder(std::string("  - {name: pos, type: position_embedding, max_length: 32}\n") + kBlock));
  const Graph graph = decode_graph(job, kSize, "head");
  CHECK(nodes(graph, Phase::forward) ==
        std::vector<std::string>{"table = embedding(data, table.weight)",
                                 "pos = position_embedding(table, pos.weight, generate.starts)",
                                 "qkv = matmul(pos, qkv.weight)", "turn = rotary(qkv, generate.starts)",
                                 "attn = cached_attention(attn.cached_keys, attn.cached_values, generate.starts, turn)",
                                 "head = matmul(attn, head.weight)"});
  CHECK(tensor(graph, "data").shape == Shape{2, 1});
  CHECK(tensor(graph, "head").shape == Shape{2, 1, 11});
  CHECK(tensor(graph, "attn.cached_keys").shape == Shape{2, 16, 8});
  CHECK(tensor(graph, "attn.cached_keys").is_cache);
  CHECK(most_positions(job) == 32);
}

TEST_CASE("the graph of prompts computes only caches, with the ids of the other graph") {
  const JobSpec job = job_of(decoder(kBlock));
  const Graph decode = decode_graph(job, kSize, "head"), prefill = prefill_graph(job, kSize, 4);
  CHECK(nodes(prefill, Phase::forward).size() == nodes(decode, Phase::forward).size() - 1);
  CHECK(tensor(prefill, "turn").shape == Shape{2, 4, 24});
  REQUIRE(prefill.tensors.size() == decode.tensors.size());
  for (size_t t = 0; t < decode.tensors.size(); ++t) CHECK(prefill.tensors[t].name == decode.tensors[t].name);
}

TEST_CASE("positions are followed through reshapes that divide heads or join rows") {
  const std::string layers = std::string(kBlock) +
                             "  - {name: heads, type: reshape, shape: [-1, 2, 4]}\n"
                             "  - {name: norm, type: rms_norm}\n"
                             "  - {name: joined, type: reshape, shape: [-1, 8]}\n";
  const Graph graph = decode_graph(job_of(decoder(layers)), kSize, "head");
  CHECK(tensor(graph, "norm").shape == Shape{2, 1, 2, 4});
  CHECK(tensor(graph, "head").shape == Shape{2, 1, 11});
}

TEST_CASE("dropout has no node, and documents are not read") {
  const std::string layers =
      "  - {name: drop, type: dropout}\n"
      "  - {name: qkv, type: dense, units: 24, bias: false}\n"
      "  - {name: attn, type: attention, heads: 2, causal: true, mask: documents, inputs: [qkv, documents]}\n";
  const Graph graph = decode_graph(job_of(decoder(layers), kPacked), kSize, "head");
  CHECK(nodes(graph, Phase::forward)[1] == "qkv = matmul(table, qkv.weight)");
}

TEST_CASE("generation has the slopes of alibi, and no dropout of attention") {
  const std::string layers =
      "  - {name: qkv, type: dense, units: 24, bias: false}\n"
      "  - {name: attn, type: attention, heads: 2, causal: true, alibi: true, dropout: 0.1}\n";
  const Graph graph = decode_graph(job_of(decoder(layers)), kSize, "head");
  const Node& attention = graph.nodes[graph.tensors[*graph.find_tensor("attn")].producer];
  CHECK(attention.op == "cached_attention");
  CHECK(attention.attrs.flag("alibi"));
  CHECK_FALSE(attention.attrs.has("dropout"));
}

TEST_CASE("layers that compute over positions otherwise are refused by name") {
  CHECK(contains(refusal("  - {name: qkv, type: dense, units: 24}\n"
                         "  - {name: attn, type: attention, heads: 2, causal: true, score_bias: trained}\n"),
                 "attn: text generation does not support this layer (attention): it has a bias of its scores"));
  CHECK(contains(refusal("  - {name: qkv, type: dense, units: 24}\n  - {name: attn, type: attention, heads: 2}\n"),
                 "attn: text generation does not support this layer (attention): its rows attend to later ones"));
  CHECK(contains(refusal("  - {name: soft, type: softmax, dim: 1}\n"), "soft: text generation does not support"));
  CHECK(
      contains(refusal("  - {name: total, type: reduce_sum, dims: [1]}\n"), "total: text generation does not support"));
  CHECK(
      contains(refusal("  - {name: first, type: slice, dim: 1, end: 3}\n"), "first: text generation does not support"));
  CHECK(contains(refusal("  - {name: turn, type: transpose, perm: [0, 2, 1]}\n"
                         "  - {name: mix, type: dense, units: 16}\n"),
                 "mix: text generation does not support"));
}
