// hybrid_parallel with one row per rank and micro-batch. Some layers depend on the position of an element in the whole
// tensor, such as dropout. After any layer that changes shapes they must compute the same numbers as on one rank.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/equivalence/harness.h"

using namespace trainctl;

namespace {

struct Case {
  const char* what;
  const char* shape;  ///< shape of a sample
  std::vector<const char*> network;
};

/// The networks; job_of appends a layer with three outputs.
const std::vector<Case> kCases = {
    {"dropout", "[6]", {"{name: a, type: dense, units: 8}", "{name: d, type: dropout, p: 0.4}"}},
    {"dropout behind flatten",
     "[1, 6]",
     {"{name: a, type: dense, units: 8}", "{type: flatten}", "{name: d, type: dropout, p: 0.4}"}},
    {"dropout behind two reshapes",
     "[2, 6]",
     {"{name: a, type: dense, units: 8}", "{type: reshape, shape: [1, 4, 1, 4]}", "{type: reshape, shape: [8, 2]}",
      "{name: d, type: dropout, p: 0.4}", "{type: flatten}"}},
    {"dropout behind squeeze",
     "[1, 6]",
     {"{name: a, type: dense, units: 8}", "{type: squeeze, dim: 1}", "{name: d, type: dropout, p: 0.4}"}},
    {"dropout behind unsqueeze",
     "[6]",
     {"{name: a, type: dense, units: 8}", "{type: unsqueeze, dim: 1}", "{name: d, type: dropout, p: 0.4}",
      "{type: flatten}"}},
    {"dropout behind flatten and transpose",
     "[2, 1, 6]",
     {"{name: a, type: dense, units: 4}", "{type: transpose, perm: [0, 3, 1, 2]}", "{type: reshape, shape: [2, 4, 1]}",
      "{name: d, type: dropout, p: 0.4}", "{type: flatten}"}},
    {"dropout behind rows that are not the first dim",
     "[2, 6]",
     {"{name: a, type: dense, units: 4}", "{type: transpose, perm: [1, 0, 2]}", "{type: flatten}", "{type: tanh}",
      "{name: d, type: dropout, p: 0.4}", "{type: reshape, shape: [-1, 4]}", "{type: transpose, perm: [1, 0, 2]}",
      "{name: e, type: dropout, p: 0.4}", "{type: flatten}"}},
    {"slice before flatten",
     "[4, 6]",
     {"{name: a, type: dense, units: 8}", "{name: s, type: slice, dim: 1, begin: 1, end: 2}", "{type: flatten}"}},
    {"slice behind flatten",
     "[4, 6]",
     {"{name: a, type: dense, units: 4}", "{type: flatten}", "{name: s, type: slice, dim: 1, begin: 3, end: 9}"}},
    {"slice of one element before squeeze",
     "[2, 6]",
     {"{name: n, type: rms_norm}", "{name: s, type: slice, dim: 1, begin: 1}", "{type: squeeze, dim: 1}"}},
    {"pad before flatten",
     "[1, 6]",
     {"{name: n, type: layer_norm}", "{name: p, type: pad, dims: [1], before: [1], after: [0]}", "{type: flatten}"}},
    {"pad behind squeeze",
     "[1, 6]",
     {"{name: n, type: rms_norm}", "{type: squeeze, dim: 1}",
      "{name: p, type: pad, dims: [1], before: [2], after: [1]}"}},
    {"images: pad, slice and flatten",
     "[2, 5, 5]",
     {"{name: c1, type: conv2d, channels: 3, kernel: 3}", "{name: p, type: pad, dims: [2], before: [1], after: [0]}",
      "{name: c2, type: conv2d, channels: 1, kernel: 2}", "{type: relu}",
      "{name: q, type: slice, dim: 2, begin: 1, end: 2}", "{type: flatten}", "{name: d, type: dropout, p: 0.3}"}},
    {"split and concat behind reshape",
     "[2, 6]",
     {"{name: a, type: dense, units: 4}", "{type: reshape, shape: [1, 8]}", "{name: s, type: split, dim: 2, parts: 2}",
      "{name: c, type: concat, inputs: [s.1, s.0], dim: 1}", "{type: flatten}", "{name: d, type: dropout, p: 0.3}"}},
    {"rotary, positions and attention behind unsqueeze",
     "[3, 4]",
     {"{name: a, type: dense, units: 8}", "{name: e, type: position_embedding, max_length: 5}",
      "{name: r, type: rotary, heads: 2}", "{name: t, type: attention, heads: 2, causal: true, inputs: [r, r, a]}",
      "{type: reshape, shape: [1, 24]}", "{type: squeeze, dim: 1}", "{name: d, type: dropout, p: 0.3}"}},
    {"a skip past flatten",
     "[1, 6]",
     {"{name: a, type: dense, units: 8}", "{name: f, type: flatten}", "{name: d, type: dropout, p: 0.4}",
      "{name: s, type: add, inputs: [d, f]}"}},
};

std::string job_of(const Case& c, int ranks, int micro_batches, const char* optimizer) {
  std::string network;
  for (const char* layer : c.network) network += fmt::format("  - {}\n", layer);
  const int batch = ranks * micro_batches;
  return fmt::format(
      "seed: 5\ndataset: {{type: random, shape: {}, batch: {}, samples: {}, label_shape: [3], label_dtype: f32}}\n"
      "network:\n{}  - {{name: out, type: dense, units: 3}}\nloss: mse\noptimizer: {}\ntrain: {{steps: 4}}\n"
      "parallel: {{mode: hybrid_parallel, micro_batches: {}}}\nlaunch: {{ranks: {}, device: cpu}}\n",
      c.shape, batch, 2 * batch, network, optimizer, micro_batches, ranks);
}

}  // namespace

TEST_CASE("hybrid_parallel: with one row per rank every plan has the losses of one rank, after every kind of reshape") {
  for (const Case& c : kCases) {
    SUBCASE(c.what) {
      for (const auto& [ranks, micro_batches] : std::vector<std::pair<int, int>>{{2, 1}, {3, 1}, {2, 3}}) {
        CAPTURE(ranks);
        CAPTURE(micro_batches);
        const std::string text = job_of(c, ranks, micro_batches, "{type: sgd, learning_rate: 0.5}");
        const RunResult run = run_job(plan_job(parse_job(text, "one_row.yaml")));
        const RunResult one = run_job(plan_job(parse_job(
            text, "one_row.yaml", {"launch.ranks=1", fmt::format("parallel={{micro_batches: {}}}", micro_batches)})));
        REQUIRE(run.losses.size() == one.losses.size());
        for (size_t step = 0; step < run.losses.size(); ++step)
          CHECK(run.losses[step] == doctest::Approx(one.losses[step]).epsilon(2e-5));
      }
    }
  }
}
