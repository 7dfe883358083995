// Makes jobs of Llama's shape for tests of the search, and measures what their plans take.
#include "tests/search/llama_jobs.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/base/error.h"
#include "engine/estimate/simulate.h"
#include "engine/machine/machine_text.h"
#include "engine/planning/compile_job.h"
#include "tests/search/drawn_jobs.h"

namespace trainctl {
namespace {

constexpr const char* kDense = R"(
    - {{name: gate, type: dense, units: {0}, bias: false}}
    - {{name: act, type: silu}}
    - {{name: up, type: dense, units: {0}, bias: false, inputs: norm2}}
    - {{name: gated, type: mul, inputs: [act, up]}}
    - {{name: down, type: dense, units: {1}, bias: false}})";

/// The layers between norm2 and sum2, and the name of the last.
std::pair<std::string, std::string> inner_layers(const LlamaShape& s) {
  if (s.experts == 0) return {fmt::format(fmt::runtime(kDense), s.hidden, s.units), "down"};
  return {fmt::format("\n    - {{name: moe, type: moe, experts: {}, top_k: 2, hidden: {}}}", s.experts, s.hidden),
          "moe"};
}

}  // namespace

std::string llama(const LlamaShape& s) {
  const auto [inner, last] = inner_layers(s);
  const std::string window = s.window > 0 ? fmt::format(", window: {}", s.window) : "";
  return fmt::format(R"(
precision: bf16
dataset: {{type: random, shape: [{0}], dtype: i32, classes: {1}, label_shape: [{0}], label_dtype: i32, batch: {2}, samples: 64}}
modules:
  block:
    - {{name: norm1, type: rms_norm}}
    - {{name: qkv, type: dense, units: {3}, bias: false}}
    - {{name: turn, type: rotary, heads: {4}, kv_heads: {5}, packing: heads}}
    - {{name: attn, type: attention, heads: {4}, kv_heads: {5}, causal: true{11}}}
    - {{name: proj, type: dense, units: {6}, bias: false}}
    - {{name: sum1, type: add, inputs: [proj, input]}}
    - {{name: norm2, type: rms_norm}}{7}
    - {{name: sum2, type: add, inputs: [{8}, sum1]}}
network:
  - {{name: table, type: embedding, vocab: {1}, units: {6}}}
  - {{module: block, name: h, repeat: {9}}}
  - {{name: norm, type: rms_norm}}
  - {{name: head, type: dense, units: {1}, bias: false}}
loss: softmax_cross_entropy
optimizer: {{type: adamw, learning_rate: 0.0003}}
launch: {{ranks: {10}, device: cuda, machine: h100x8}}
)",
                     s.length, s.vocab, s.batch, s.units / s.heads * (s.heads + 2 * s.kv_heads), s.heads, s.kv_heads,
                     s.units, inner, last, s.blocks, s.ranks, window);
}

std::optional<Outcome> outcome_of(const std::string& text, const std::vector<std::string>& settings) {
  try {
    const PlannedJob job = planned(text, settings);
    const RankClasses classes = compile_one_per_stage(job);
    return Outcome{simulate(classes, job.cost.machine(), false).step.value, most_memory(classes)};
  } catch (const SpecError&) {
    return std::nullopt;
  }
}

std::optional<Outcome> found_for(const std::string& text, std::vector<std::string> settings) {
  settings.emplace_back("parallel.mode=auto_parallel");
  try {
    const PlannedJob job = planned(text, settings);
    const TriedPlan& best = job.search->best();
    return Outcome{best.trial.seconds, best.trial.memory, best.name};
  } catch (const SpecError&) {
    return std::nullopt;
  }
}

int from_environment(const char* name, int otherwise) {
  const char* const given = std::getenv(name);
  return given != nullptr ? std::atoi(given) : otherwise;
}

MachineFile::MachineFile(const Machine& machine) {
  path_ = (std::filesystem::temp_directory_path() /
           ("search_law_" + std::to_string(reinterpret_cast<uintptr_t>(this)) + ".json"))
              .string();
  std::ofstream(path_) << to_json(machine);
}
MachineFile::~MachineFile() { std::filesystem::remove(path_); }

}  // namespace trainctl
