// trainctl bench model: the table of public models, and the kernel calls that it makes of them.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "cli/measure/model_bench.h"
#include "engine/base/error.h"

using namespace trainctl;

namespace {

/// Weights of matrices; norms are less than a thousandth.
double parameters(const PublicModel& m, bool is_tied) {
  const int64_t attention =
      m.width * (m.heads * m.key_size + m.kv_heads * (m.key_size + m.value_size)) + m.heads * m.value_size * m.width;
  const int64_t forward = (m.is_gated ? 3 : 2) * m.width * m.hidden;
  return static_cast<double>(m.layers * (attention + std::max<int64_t>(1, m.experts) * forward) +
                             (is_tied ? 1 : 2) * m.vocab * m.width);
}

}  // namespace

TEST_CASE("bench model: the sizes of every model add up to its published number of parameters") {
  struct Published {
    double billions;
    bool is_tied;
  };
  const std::map<std::string_view, Published> published = {
      {"gpt2-124m", {0.124, true}},    {"gpt2-1558m", {1.558, true}},    {"smollm2-135m", {0.1345, true}},
      {"qwen3-0.6b", {0.596, true}},   {"llama-1b", {1.236, true}},      {"phi-3-mini", {3.82, false}},
      {"gemma-3-4b", {3.88, true}},    {"mistral-7b", {7.248, false}},   {"olmo-2-7b", {7.30, false}},
      {"llama-8b", {8.03, false}},     {"qwen3-8b", {8.19, false}},      {"mistral-small-24b", {23.57, false}},
      {"gemma-3-27b", {27.0, true}},   {"qwen3-32b", {32.76, false}},    {"llama-70b", {70.55, false}},
      {"mixtral-8x7b", {46.7, false}}, {"qwen3-30b-a3b", {30.53, false}}};
  int compared = 0;
  for (const PublicModel& model : public_models()) {
    const auto known = published.find(model.name);
    if (known == published.end()) continue;
    CAPTURE(model.name);
    ++compared;
    CHECK(parameters(model, known->second.is_tied) / 1e9 == doctest::Approx(known->second.billions).epsilon(0.015));
  }
  CHECK(compared == static_cast<int>(published.size()));
}

TEST_CASE("bench model: every kernel call of every model is one that an op accepts") {
  for (const PublicModel& model : public_models()) {
    for (const ModelOp& op : model_ops(model, 2, 256)) {
      CAPTURE(model.name);
      CAPTURE(op.what);
      CHECK_NOTHROW(make_op_request(op.op, op.shapes, op.attrs, {DType::bf16, false}));
    }
  }
}
