// Cases of one_hot: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs one_hot(const Inputs& in, const Attrs& attrs) {
  Shape shape = in[0].shape;
  shape.push_back(attrs.integer("classes"));
  return {make(shape, [&](const Index& i) {
    return static_cast<int64_t>(at(in[0], Index(i.begin(), i.end() - 1))) == i.back() ? 1.0 : 0.0;
  })};
}

Attrs classes(int64_t count) { return {{"classes", count}}; }

}  // namespace

extern const OpCases one_hot_cases = {
    .rows = {{"one_hot", {ids({6, 4}, 12)}, classes(12), {{6, 4, 12}}},
             {"one_hot", {ids({7}, 5)}, classes(5), {{7, 5}}},
             {"one_hot", {ids({5}, 1)}, classes(1), {{5, 1}}},
             {"one_hot", {ids({3, 2, 2}, 8)}, classes(37), {{3, 2, 2, 37}}}},
    .references = {{"one_hot", one_hot}},
    .rules = {{{"one_hot", {{{2, 3}, DType::i32}}, classes(5)}, "ab->abc", "", {{2, 3, 5}}}},
    .shape_errors = {{{"one_hot", {{{2}}}, classes(5)}, "one_hot expects i32 ids, but got [2] f32"}},
    .layers = {{"one_hot", ", classes: 7", {8, 5, 7}, true}},
};

}  // namespace trainctl
