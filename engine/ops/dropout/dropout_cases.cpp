#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs dropout(const Inputs& in, const Attrs& attrs) {
  const double p = attrs.number("p");
  Tensor64 y = in[0];
  for (size_t i = 0; i < y.values.size(); ++i) {
    const bool kept = keeps(p, attrs.integer("key"), kCaseSeed, kCaseStep, kCaseMicroBatch, i);
    y.values[i] = kept ? y.values[i] / (1.0 - p) : 0.0;
  }
  return {y};
}

Attrs drop(double p, int64_t key) { return {{"p", p}, {"key", key}}; }

}  // namespace

extern const OpCases dropout_cases = {
    .rows = {{"dropout", {{{12, 7}}}, drop(0.3, -5), {{12, 7}}},
             {"dropout", {{{4, 6, 37}}}, drop(0.5, 99), {{4, 6, 37}}},
             {"dropout", {{{5}}}, drop(0.0, 1), {{5}}}},
    .references = {{"dropout", dropout}},
    .rules = {{{"dropout", {{{2, 3}}}, drop(0.5, 7)}, "ab->ab", "", {{2, 3}}}},
    .gradients = {{{"dropout", {{{2, 3}}}, drop(0.5, 7)}, {"dropout ab->ab"}, "the same mask by global index"}},
    .shape_errors = {{{"dropout", {{{2}}}, drop(1.0, 0)}, "dropout: p is 1, expected 0 <= p < 1"}},
    .layers = {{"dropout", ", p: 0.2", {8, 12}}},
};

}  // namespace trainctl
