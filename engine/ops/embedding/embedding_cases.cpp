// Cases of embedding: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs embedding(const Inputs& in, const Attrs&) {
  Shape shape = in[0].shape;
  shape.push_back(in[1].shape[1]);
  return {make(shape, [&](const Index& i) {
    const auto id = static_cast<int64_t>(at(in[0], Index(i.begin(), i.end() - 1)));
    return at(in[1], {id, i.back()});
  })};
}

}  // namespace

extern const OpCases embedding_cases = {
    .rows = {{"embedding", {ids({6, 4}, 12), {{12, 6}}}, {}, {{6, 4, 6}}},
             {"embedding", {ids({7}, 5), {{5, 3}}}, {}, {{7, 3}}},
             {"embedding", {ids({2, 2, 3}, 4), {{4, 1}}}, {}, {{2, 2, 3, 1}}}},
    .references = {{"embedding", embedding}},
    // A rank returns 0 for rows that it does not hold: the vocabulary is a contraction.
    .rules = {{{"embedding", {{{2, 3}, DType::i32}, {{9, 4}}}}, "ab,vd->abd", "", {{2, 3, 4}}}},
    .gradients =
        {{{"embedding", {{{2, 3}, DType::i32}, {{9, 4}}}},
          {"embedding_grad abd,ab->vd sums ab"},
          "the gradient of a row of the table sums over all ids; a rank with some of the rows computes those alone"}},
    .shape_errors = {{{"embedding", {{{2}}, {{9, 4}}}}, "embedding expects i32 ids, but got [2] f32"},
                     {{"embedding", {{{2}, DType::i32}, {{9}}}},
                      "embedding needs a table [vocab, units], but got [9]"}},
    .layers = {{"embedding", ", vocab: 7, units: 12", {8, 5, 12}, true}},
};

}  // namespace trainctl
