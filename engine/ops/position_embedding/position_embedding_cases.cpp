// Cases of position_embedding: its kernels in double precision, and the shapes, sharding rules, gradients and errors to
// expect.
#include <algorithm>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs position_embedding(const Inputs& in, const Attrs&) {
  return {make(in[0].shape, [&](const Index& i) {
    int64_t position = i[i.size() - 2];
    if (in.size() == 3) position -= std::min(position, static_cast<int64_t>(at(in[2], {i[0], i[1]})));
    return at(in[0], i) + at(in[1], {position, i.back()});
  })};
}

}  // namespace

extern const OpCases position_embedding_cases = {
    .rows = {{"position_embedding", {{{4, 6, 8}}, {{6, 8}}}, {}, {{4, 6, 8}}},
             {"position_embedding", {{{3, 6, 5}}, {{11, 5}}}, {}, {{3, 6, 5}}},
             {"position_embedding", {{{2, 1, 12}}, {{4, 12}}}, {}, {{2, 1, 12}}},
             {"position_embedding", {{{2, 3, 4, 37}}, {{17, 37}}}, {}, {{2, 3, 4, 37}}},
             {"position_embedding", {{{4, 6, 8}}, {{6, 8}}, ids({4, 6}, 4)}, {}, {{4, 6, 8}}},
             {"position_embedding", {{{2, 40, 12}}, {{64, 12}}, ids({2, 40}, 40)}, {}, {{2, 40, 12}}}},
    .references = {{"position_embedding", position_embedding}},
    .rules =
        {{{"position_embedding", {{{2, 3, 4}}, {{5, 4}}}}, "atd,pd->atd", "p", {{2, 3, 4}}},
         {{"position_embedding", {{{2, 3, 4}}, {{5, 4}}, {{2, 3}, DType::i32}}}, "atd,pd,at->atd", "p", {{2, 3, 4}}}},
    .gradients = {{{"position_embedding", {{{2, 3, 4}}, {{5, 4}}}},
                   {"pass in0", "position_embedding_grad atd->pd sums at"},
                   "every sample uses a row, so its gradient sums over samples; a rank with some positions writes "
                   "their rows, and 0 elsewhere"},
                  {{"position_embedding", {{{2, 3, 4}}, {{5, 4}}, {{2, 3}, DType::i32}}},
                   {"pass in0", "position_embedding_grad atd,at->pd sums at"},
                   "the same; each row of dy belongs to one position"}},
    .shape_errors = {{{"position_embedding", {{{2, 6, 4}}, {{5, 4}}}},
                      "position_embedding: [2, 6, 4] has 6 positions, but max_length is 5"},
                     {{"position_embedding", {{{2, 6, 4}}, {{8, 3}}}},
                      "position_embedding: the table is [8, 3], expected [max_length, 4]"},
                     {{"position_embedding", {{{2, 6, 4}}, {{8, 4}}, {{2, 5}, DType::i32}}},
                      "position_embedding: the documents is [2, 5] i32, expected [2, 6]"}},
    .layers = {{"position_embedding", ", max_length: 7, inputs: [rows]", {8, 3, 4}}},
};

}  // namespace trainctl
