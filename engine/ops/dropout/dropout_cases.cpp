// Cases of dropout: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// The index in the tensor of the whole batch of the element at `at` in that of a micro-batch. Attr `batch` names the
/// dim that is [outer, micro_batches x rows, inner] there.
size_t of_batch(const Shape& shape, const Ints& batch, const Index& at) {
  int64_t whole = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (static_cast<int64_t>(d) != batch[1]) {
      whole = whole * shape[d] + at[d];
      continue;
    }
    const int64_t block = shape[d] / batch[2];
    whole = ((whole * batch[2] + at[d] / block) * batch[0] + kCaseMicroBatch) * block + at[d] % block;
  }
  return static_cast<size_t>(whole);
}

Outputs dropout(const Inputs& in, const Attrs& attrs) {
  const double p = attrs.number("p");
  const Ints batch = attrs.ints("batch");
  return {make(in[0].shape, [&](const Index& at) {
    const bool kept = keeps(p, attrs.integer("key"), kCaseSeed, kCaseStep,
                            of_batch(in[0].shape, batch.empty() ? Ints{1, -1, 1} : batch, at));
    return kept ? naive::at(in[0], at) / (1.0 - p) : 0.0;
  })};
}

Attrs drop(double p, int64_t key) { return {{"p", p}, {"key", key}}; }
Attrs drop(double p, int64_t key, const Ints& batch) { return {{"p", p}, {"key", key}, {"batch", batch}}; }

}  // namespace

extern const OpCases dropout_cases = {
    .rows =
        {{"dropout", {{{12, 7}}}, drop(0.3, -5), {{12, 7}}},
         {"dropout", {{{4, 6, 37}}}, drop(0.5, 99), {{4, 6, 37}}},
         {"dropout", {{{5}}}, drop(0.0, 1), {{5}}},
         // One of 4 or 5 micro-batches. The batch is the first dim, an inner dim, or merged behind a dim of size 10.
         {"dropout", {{{12, 7}}}, drop(0.3, -5, {4, 0, 1}), {{12, 7}}},
         {"dropout", {{{6, 64}}}, drop(0.5, 3, {5, 0, 1}), {{6, 64}}},
         {"dropout", {{{4, 6, 37}}}, drop(0.5, 99, {4, 1, 1}), {{4, 6, 37}}},
         {"dropout", {{{4, 6, 8}}}, drop(0.5, 98, {5, 2, 1}), {{4, 6, 8}}},
         {"dropout", {{{6, 40}}}, drop(0.4, 97, {4, 1, 10}), {{6, 40}}}},
    .references = {{"dropout", dropout}},
    .rules = {{{"dropout", {{{2, 3}}}, drop(0.5, 7)}, "ab->ab", "", {{2, 3}}}},
    .gradients = {{{"dropout", {{{2, 3}}}, drop(0.5, 7)},
                   {"dropout ab->ab"},
                   "the mask depends on an element's global index alone, so it is the same on every rank"}},
    .shape_errors = {{{"dropout", {{{2}}}, drop(1.0, 0)}, "dropout: p is 1, expected 0 <= p < 1"},
                     {{"dropout", {{{6, 2}}}, drop(0.5, 0, {4, 0, 4})},
                      "dropout: batch [4, 0, 4] must be [micro-batches, dim, outer] with a dim of [6, 2] that outer "
                      "divides"}},
    .layers = {{"dropout", ", p: 0.2", {8, 12}}},
};

}  // namespace trainctl
