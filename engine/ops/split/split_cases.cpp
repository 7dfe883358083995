// Cases of split: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Ints offsets_of(const Attrs& attrs, const Ints& sizes) {
  Ints offsets = attrs.ints("offsets");
  int64_t next = 0;
  for (size_t i = offsets.size(); i < sizes.size(); next += sizes[i++]) offsets.push_back(next);
  return offsets;
}

/// The parts of x along attr dim, each from its offset on.
Outputs split(const Inputs& in, const Attrs& attrs) {
  const auto dim = static_cast<size_t>(attrs.integer("dim"));
  const Ints sizes = attrs.ints("sizes"), offsets = offsets_of(attrs, sizes);
  Outputs parts;
  for (size_t p = 0; p < sizes.size(); ++p) {
    Shape shape = in[0].shape;
    shape[dim] = sizes[p];
    parts.push_back(make(shape, [&](Index i) {
      i[dim] += offsets[p];
      return at(in[0], i);
    }));
  }
  return parts;
}

/// The inputs joined along attr dim, with zeros between them if attr offsets leaves gaps.
Outputs concat(const Inputs& in, const Attrs& attrs) {
  const auto dim = static_cast<size_t>(attrs.integer("dim"));
  Ints sizes;
  int64_t whole = 0;
  for (const Tensor64& part : in) {
    sizes.push_back(part.shape[dim]);
    whole += part.shape[dim];
  }
  const Ints offsets = offsets_of(attrs, sizes);
  Shape shape = in[0].shape;
  shape[dim] = attrs.has("size") ? attrs.integer("size") : whole;
  return {make(shape, [&](Index i) {
    const int64_t place = i[dim];
    for (size_t p = 0; p < in.size(); ++p) {
      if (place < offsets[p] || place >= offsets[p] + sizes[p]) continue;
      i[dim] = place - offsets[p];
      return at(in[p], i);
    }
    return 0.0;
  })};
}

/// The result of a pack kernel on one rank: zeros, since there are no blocks for other ranks. The cases of the ops run
/// these kernels on several ranks.
Outputs no_blocks(const NaiveCall& call) { return {zeros(call.before[0].shape)}; }

Inputs without_blocks(const NaiveCall& call) { return {call.in.begin(), call.in.end() - 1}; }

Attrs along(int64_t dim) { return {{"dim", dim}}; }
Attrs parts(int64_t dim, Ints sizes) { return {{"dim", dim}, {"sizes", std::move(sizes)}}; }
Attrs parts_at(int64_t dim, Ints sizes, Ints offsets) {
  return {{"dim", dim}, {"sizes", std::move(sizes)}, {"offsets", std::move(offsets)}};
}

}  // namespace

extern const OpCases split_cases = {
    .rows = {{"split", {{{6, 12}}}, parts(1, {4, 4, 4}), {{6, 4}, {6, 4}, {6, 4}}},
             {"split", {{{4, 3, 31}}}, parts(2, {1, 17, 13}), {{4, 3, 1}, {4, 3, 17}, {4, 3, 13}}},
             {"split", {{{6, 7, 4}}}, parts(1, {5, 2}), {{6, 5, 4}, {6, 2, 4}}},
             {"split", {{{5, 6}}}, parts(0, {2, 3}), {{2, 6}, {3, 6}}},
             // parts of which several ranks can have a shard
             {"split", {{{4, 24}}}, parts(1, {12, 6, 6}), {{4, 12}, {4, 6}, {4, 6}}},
             {"split", {{{24, 3}}}, parts(0, {4, 16, 4}), {{4, 3}, {16, 3}, {4, 3}}},
             {"split", {{{2, 36, 5}}}, parts(1, {12, 12, 12}), {{2, 12, 5}, {2, 12, 5}, {2, 12, 5}}},
             {"split", {{{2, 24}}}, parts_at(1, {4, 8}, {3, 12}), {{2, 4}, {2, 8}}},
             {"split", {{{2, 8}}}, parts_at(1, {4}, {2}), {{2, 4}}},
             {"concat", {{{4, 12}}, {{4, 6}}, {{4, 6}}}, along(1), {{4, 24}}},
             {"concat", {{{4, 3}}, {{16, 3}}, {{4, 3}}}, along(0), {{24, 3}}},
             {"concat", {{{2, 12, 5}}, {{2, 12, 5}}, {{2, 12, 5}}}, along(1), {{2, 36, 5}}},
             {"concat",
              {{{2, 4}}, {{2, 8}}},
              {{"dim", int64_t{1}}, {"offsets", Ints{3, 12}}, {"size", int64_t{24}}},
              {{2, 24}}},
             {"split", {{{2, 11, 1}}}, parts_at(1, {3, 2}, {1, 8}), {{2, 3, 1}, {2, 2, 1}}},
             {"concat", {{{6, 5}}, {{6, 5}}}, along(1), {{6, 10}}},
             {"concat", {{{4, 3, 1}}, {{4, 3, 17}}, {{4, 3, 13}}}, along(2), {{4, 3, 31}}},
             {"concat", {{{6, 5, 4}}, {{6, 2, 4}}}, along(1), {{6, 7, 4}}},
             {"concat", {{{2, 6}}, {{3, 6}}}, along(0), {{5, 6}}},
             {"concat",
              {{{2, 3, 1}}, {{2, 2, 1}}},
              {{"dim", int64_t{1}}, {"offsets", Ints{1, 8}}, {"size", int64_t{11}}},
              {{2, 11, 1}}}},
    .references = {{"split", split}, {"concat", concat}},
    .rules =
        {{{"split", {{{2, 6, 3}}}, parts(1, {3, 3})}, "a(bd)c->abc,abc", "d", {{2, 3, 3}, {2, 3, 3}}, "b"},
         {{"split", {{{2, 24}}}, parts(1, {12, 8, 4})}, "a(bc)->a(bd),a(be),ab", "cde", {{2, 12}, {2, 8}, {2, 4}}, "b"},
         {{"split", {{{2, 6}}}, parts(1, {1, 2, 3})}, "a(bc)->ab,a(bd),a(be)", "cde", {{2, 1}, {2, 2}, {2, 3}}},
         {{"concat", {{{2, 3}}, {{2, 3}}}, along(1)}, "ab,ab->a(bc)", "c", {{2, 6}}, "b"},
         {{"concat", {{{1, 3}}, {{4, 3}}}, along(0)}, "ab,(ad)b->(ac)b", "cd", {{5, 3}}}},
    .gradients =
        {{{"split", {{{2, 5}}}, parts(1, {2, 3})},
          {"concat a(bd)->a(bc) sums d"},
          "it moves elements of a dim that is whole or exchanged; the part of an output without a gradient is 0",
          "d"},
         {{"concat", {{{2, 2}}, {{2, 3}}}, along(1)},
          {"split a(bc)->a(bd),a(be) sums c sums c"},
          "it moves elements of a dim that is whole or exchanged",
          "c"}},
    .shape_errors = {{{"split", {{{2, 6}}}, parts(1, {2, 3})}, "split: the sum of sizes [2, 3] is not dim 1 of [2, 6]"},
                     {{"split", {{{2, 6}}}, parts(2, {2, 3})}, "split: there is no dim 2 in [2, 6]"},
                     {{"split", {{{2, 6}}}, parts_at(1, {2, 3}, {0, 1})},
                      "split: parts of [2, 3] at [0, 1] do not fit into a dim of 6"},
                     {{"concat", {{{2, 3}}, {{3, 3}}}, along(1)},
                      "concat: input 1 is [3, 3], but input 0 is [2, 3]; they may differ only in dim 1"},
                     {{"concat", {{{2, 3}}, {{2, 3}, DType::i32}}, along(1)},
                      "concat: input 1 is i32, but input 0 is f32"}},
    .kernels = {{"split_pack", {{{4, 6}}}, {unwritten({1, 4, 1})}, parts(1, {2, 4})},
                {"split_apply", {{{4, 6}}, {{1, 4, 1}}}, {unwritten({4, 2}), unwritten({4, 4})}, parts(1, {2, 4})},
                {"concat_pack", {{{4, 2}}, {{4, 4}}}, {unwritten({1, 4, 1})}, along(1)},
                {"concat_apply", {{{4, 2}}, {{4, 4}}, {{1, 4, 1}}}, {unwritten({4, 6})}, along(1)}},
    .kernel_references = {{"split_pack", no_blocks},
                          {"split_apply",
                           [](const NaiveCall& call) { return split(without_blocks(call), call.attrs); }},
                          {"concat_pack", no_blocks},
                          {"concat_apply",
                           [](const NaiveCall& call) { return concat(without_blocks(call), call.attrs); }}},
    .layers = {{"split", ", parts: 3", {8, 4}, false, {}, "layer.2"}, {"concat", ", inputs: [first, first]", {8, 24}}},
};

}  // namespace trainctl
