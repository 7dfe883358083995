// Collectives as layers (hybrid_parallel) have no kernels: tests/compile and tests/runtime run them.
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

const Attrs kGroup{{"group", std::vector<Ints>{{0, 1, 2, 3}}}, {"group_size", int64_t{4}}};
const Attrs kRooted{{"group", std::vector<Ints>{{0, 1, 2, 3}}}, {"group_size", int64_t{4}}, {"root", int64_t{0}}};
const Attrs kDims{{"group", std::vector<Ints>{{0, 1, 2, 3}}},
                  {"group_size", int64_t{4}},
                  {"split_dim", int64_t{0}},
                  {"concat_dim", int64_t{1}}};

}  // namespace

extern const OpCases collectives_cases = {
    // Local shapes, nothing is cut.
    .rules = {{{"all_reduce", {{{8, 3}}}, kGroup}, "ab->cd", "abcd", {{8, 3}}},
              {{"all_gather", {{{8, 3}}}, kGroup}, "ab->cd", "abcd", {{32, 3}}},
              {{"reduce_scatter", {{{8, 3}}}, kGroup}, "ab->cd", "abcd", {{2, 3}}},
              {{"all_to_all", {{{8, 3}}}, kDims}, "ab->cd", "abcd", {{2, 12}}},
              {{"broadcast", {{{8, 3}}}, kRooted}, "ab->cd", "abcd", {{8, 3}}}},
    // y_r depends on x_q of the group; with a loss that sums over ranks, dx_q = sum over r of dy_r * dy_r/dx_q.
    // Nothing is cut, so no partial sums are derived.
    .gradients = {{{"all_reduce", {{{8, 3}}}, kGroup},
                   {"all_reduce cd->ab sums cd"},
                   "each y is the sum of all x, so each dx is the sum of all dy"},
                  {{"all_gather", {{{8, 3}}}, kGroup},
                   {"reduce_scatter cd->ab sums cd"},
                   "rank q gave block q of every y, so its dx is the sum of block q of all dy"},
                  {{"reduce_scatter", {{{8, 3}}}, kGroup},
                   {"all_gather cd->ab sums cd"},
                   "block r of each x was added on rank r, so block r of each dx is the dy of rank r"},
                  {{"all_to_all",
                    {{{8, 3}}},
                    {{"group_size", int64_t{4}}, {"split_dim", int64_t{0}}, {"concat_dim", int64_t{1}}}},
                   {"all_to_all cd->ab sums cd"},
                   "the exchange permutes blocks, and the gradient permutes them back"},
                  {{"broadcast", {{{8, 3}}}, kGroup},
                   {"reduce cd->ab sums cd"},
                   "every y is the root's x, so the root's dx is the sum of all dy"}},
    .shape_errors =
        {{{"reduce_scatter", {{{3}}}, {{"group_size", int64_t{2}}}},
          "reduce_scatter: dim 0 of [3] cannot be divided evenly over the 2 ranks of a group"},
         {{"all_to_all", {{{4}}}, {{"group_size", int64_t{2}}, {"split_dim", int64_t{0}}, {"concat_dim", int64_t{1}}}},
          "all_to_all: there is no dim 1 in [2]"}},
    .layers = {{"all_reduce", "", {8, 12}},
               {"all_gather", ", group: [[0, 2], [1, 3]]", {16, 12}},
               {"reduce_scatter", "", {2, 12}},
               {"all_to_all", ", split_dim: 0, concat_dim: -1", {2, 48}},
               {"broadcast", ", root: 1", {8, 12}}},
};

}  // namespace trainctl
