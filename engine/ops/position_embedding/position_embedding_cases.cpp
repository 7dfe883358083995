#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs position_embedding(const Inputs& in, const Attrs&) {
  return {make(in[0].shape, [&](const Index& i) { return at(in[0], i) + at(in[1], {i[i.size() - 2], i.back()}); })};
}

}  // namespace

extern const OpCases position_embedding_cases = {
    .rows = {{"position_embedding", {{{4, 6, 8}}, {{6, 8}}}, {}, {{4, 6, 8}}},
             {"position_embedding", {{{3, 6, 5}}, {{11, 5}}}, {}, {{3, 6, 5}}},
             {"position_embedding", {{{2, 1, 12}}, {{4, 12}}}, {}, {{2, 1, 12}}},
             {"position_embedding", {{{2, 3, 4, 37}}, {{17, 37}}}, {}, {{2, 3, 4, 37}}}},
    .references = {{"position_embedding", position_embedding}},
    .rules = {{{"position_embedding", {{{2, 3, 4}}, {{5, 4}}}}, "atd,pd->atd", "p", {{2, 3, 4}}}},
    .gradients = {{{"position_embedding", {{{2, 3, 4}}, {{5, 4}}}},
                   {"pass in0", "position_embedding_grad atd->pd sums at"},
                   "a row is used in every sample; a rank with some positions has their rows and 0 elsewhere"}},
    .shape_errors = {{{"position_embedding", {{{2, 6, 4}}, {{5, 4}}}},
                      "position_embedding: [2, 6, 4] has 6 positions, but max_length is 5"},
                     {{"position_embedding", {{{2, 6, 4}}, {{8, 3}}}},
                      "position_embedding: the table is [8, 3], expected [max_length, 4]"}},
    .layers = {{"position_embedding", ", max_length: 7, inputs: [rows]", {8, 3, 4}}},
};

}  // namespace trainctl
