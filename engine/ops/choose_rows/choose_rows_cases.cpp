// Cases of choose_rows: its kernels in double precision, and the shapes, sharding rules, gradients and errors to
// expect.
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

int64_t id_of(const Tensor64& ids, const Index& index) {
  return static_cast<int64_t>(at(ids, Index(index.begin(), index.begin() + static_cast<int64_t>(ids.shape.size()))));
}

Outputs choose_rows(const Inputs& in, const Attrs&) {
  return {make(in[1].shape, [&](const Index& i) { return at(in[static_cast<size_t>(1 + id_of(in[0], i))], i); })};
}

Outputs masked_rows(const NaiveCall& call) {
  return {make(call.in[1].shape, [&](const Index& i) {
    return id_of(call.in[0], i) == call.attrs.integer("number") ? at(call.in[1], i) : 0.0;
  })};
}

std::vector<KernelCase> masked_rows_kernels() {
  std::vector<KernelCase> calls;
  for (const Shape& shape : {Shape{12, 7}, Shape{300, 8}, Shape{3, 5001}}) {
    const CaseOperand of{.shape = {shape[0]}, .fill = CaseOperand::Fill::ids, .dtype = DType::i32, .number = 3};
    calls.push_back({"masked_rows", {of, {.shape = shape}}, {unwritten(shape)}, {{"number", int64_t{1}}}, 0});
  }
  return calls;
}

}  // namespace

extern const OpCases choose_rows_cases = {
    .rows = {{"choose_rows", {ids({6}, 2), {{6, 10}}, {{6, 10}}}, {}, {{6, 10}}},
             {"choose_rows", {ids({4, 3}, 3), {{4, 3, 5}}, {{4, 3, 5}}, {{4, 3, 5}}}, {}, {{4, 3, 5}}},
             {"choose_rows", {ids({12}, 1), {{12, 2, 3}}}, {}, {{12, 2, 3}}}},
    .references = {{"choose_rows", choose_rows}},
    .rules = {{{"choose_rows", {{{2}, DType::i32}, {{2, 3}}, {{2, 3}}}}, "a,ab,ab->ab", "", {{2, 3}}}},
    .gradients = {{{"choose_rows", {{{2}, DType::i32}, {{2, 3}}, {{2, 3}}}},
                   {"masked_rows a,ab->ab", "masked_rows a,ab->ab"},
                   "each row is independent of the others: it is dy where the row chose this input, otherwise 0"}},
    .shape_errors = {{{"choose_rows", {{{2}}, {{2, 3}}}}, "choose_rows: the ids are [2], expected i32"},
                     {{"choose_rows", {{{3}, DType::i32}, {{2, 3}}}},
                      "choose_rows: the ids are [3], expected the first dims of [2, 3]"},
                     {{"choose_rows", {{{2}, DType::i32}, {{2, 3}}, {{2, 4}}}},
                      "choose_rows: an input is [2, 4], expected [2, 3]"}},
    .kernels = masked_rows_kernels(),
    .kernel_references = {{"masked_rows", masked_rows}},
    .layers = {{"choose_rows", ", inputs: [data, looked_up, looked_up]", {8, 5, 3}, true}},
};

}  // namespace trainctl
