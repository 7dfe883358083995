// The graphs of text generation, made of the network of a job. Each row of the batch is a text. A graph reads a few
// tokens of each text, and the position of the first of them; keys and values of all earlier ones are in caches, which
// are states of the graph (Tensor::is_cache).
//
//   prefill   rows x many tokens of the prompts -> the caches
//   decode    rows x 1 token -> the caches, and the logits of the next token
//
// Both have the tensors of the same network under the same ids, so one plan is the plan of both.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/graph/graph.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

struct GenerationSize {
  int64_t rows = 1;       ///< texts at a time
  int64_t positions = 1;  ///< the most tokens of a text, with its prompt; at least 2
};

/// The inputs of the graphs: i32 [rows, tokens], under the name by which the network reads it, and i32 [rows].
std::string tokens_input(const JobSpec& spec);
inline constexpr std::string_view kStartsInput = "generate.starts";

/// The limit of the network itself: the rows of its tables of positions; 0: it has none.
int64_t most_positions(const JobSpec& spec);

/// `spec` has one micro-batch of size.rows samples, and no loss. The graph prints the logits, [.., vocabulary].
/// `output`: the layer whose output they are. SpecError at a layer that generation does not support, because it
/// computes over positions other than by causal attention.
Graph decode_graph(const JobSpec& spec, const GenerationSize& size, const std::string& output);
Graph prefill_graph(const JobSpec& spec, const GenerationSize& size, int64_t tokens);

}  // namespace trainctl
