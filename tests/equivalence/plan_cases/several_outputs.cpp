// Layers with several outputs, and layers that change shapes.
#include "tests/equivalence/plan_cases/families.h"
#include "tests/equivalence/plan_cases/overrides.h"

namespace trainctl {

using namespace plan_overrides;

std::vector<PlanCase> several_outputs_cases() {
  return {
      // layers with several outputs
      {"split: data parallel, 4 ranks", "split", {}, {ranks(4), kData}},
      {"split: 2 stages of 2, micro-batches, recompute, level 2",
       "split",
       {kMicro2},
       {ranks(4), kSemi, kTwoStages, kShard2, "parallel.recompute=['h.*']"}},
      {"split: dims beside the one that is split, 6 ranks",
       "split",
       {},
       {ranks(6), kSemi,
        "parallel.strategies={h.0.cut: [[6, 1, 1]], parts: [[3, 1, 1]], tokens: [[3, 1, 2]], back: [[1, 1, 2], [1, 1, "
        "2], "
        "[1, 1, 2], [1, 1, 2], [1, 1, 2]]}"}},
      {"split: packed q, k, v whose units are cut, 3 ranks",
       "split",
       {},
       {ranks(3), kSemi, "parallel.strategies={'h.*.qkv': [[1, 1, 1], [3, 1]], 'h.*.cut': [[1, 1, 3]]}"}},
      {"split: packed q, k, v and tokens cut, 12 ranks, micro-batches, recompute",
       "split",
       {kMicro2},
       {ranks(12), kSemi, "parallel.recompute=['h.*.cut', joined]",
        "parallel.strategies={'h.*.qkv': [[2, 1, 1], [6, 1]], 'h.*.cut': [[2, 1, 6]], back: [[2, 1, 2], [2, 1, 2], [2, "
        "1, "
        "2], [2, 1, 2], [2, 1, 2]]}"}},
      {"joined_images: channels last, channels cut and exchanged, 2 ranks",
       "joined_images",
       {"train.epochs=50"},
       {ranks(2), kSemi,
        "parallel.strategies={joined: [[1, 2, 1, 1], [1, 2, 1, 1]], parts: [[1, 2, 1, 1]], back: [[1, 2, 1, 1], [1, 2, "
        "1, 1]]}"}},
      {"joined_images: channels last, batch, channels and rows cut, 4 ranks",
       "joined_images",
       {"train.epochs=50"},
       {ranks(4), kSemi,
        "parallel.strategies={joined: [[2, 2, 1, 1], [2, 2, 1, 1]], parts: [[1, 4, 1, 1]], back: [[1, 1, 4, 1], [1, 1, "
        "4, 1]]}"}},
      {"parts: no strategies, 4 ranks", "parts", {}, {ranks(4), kSemi}},
      {"parts: along the dims that are cut, 2 ranks",
       "parts",
       {},
       {ranks(2), kSemi,
        "parallel.strategies={packed: [[1, 1, 1], [2, 1]], cut: [[1, 1, 2]], joined: [[1, 1, 2], [1, 1, 2], [1, 1, "
        "2]], "
        "down: [[1, 1, 2], [1, 2]], halves: [[1, 2, 1]], turned: [[1, 2, 1], [1, 2, 1]], middle: [[1, 1, 2]], padded: "
        "[[1, 1, 2]], sum: [[1, 1, 2], [1, 1, 2]], out: [[1, 1, 2], [1, 2]]}"}},
      {"parts: units 3 ways, tokens 2 ways, micro-batches, level 2, 6 ranks",
       "parts",
       {kMicro2},
       {ranks(6), kSemi, kShard2,
        "parallel.strategies={packed: [[1, 1, 1], [6, 1]], cut: [[1, 2, 3]], joined: [[2, 1, 3], [2, 1, 3], [2, 1, "
        "3]], "
        "halves: [[1, 6, 1]], turned: [[3, 2, 1], [3, 2, 1]], sum: [[1, 1, 6], [1, 1, 6]]}"}},
      {"parts: 2 stages of 4, cut by units and batch, recompute",
       "parts",
       {kMicro2},
       {ranks(8), kSemi, kTwoStages, "parallel.recompute=['*']",
        "parallel.strategies={cut: [[2, 1, 2]], joined: [[1, 1, 4], [1, 1, 4], [1, 1, 4]], turned: [[2, 2, 1], [2, 2, "
        "1]]}"}},
      {"shapes: groups, rows, slices and paddings cut, 2 ranks",
       "shapes",
       {"train.epochs=25"},
       {ranks(2), kSemi,
        "parallel.strategies={wide: [[1, 1, 2]], fc: [[1, 1, 2], [1, 2]], rms: [[1, 1, 2]], bn: [[1, 1, 2]], left: "
        "[[1, 1, 2]], "
        "middle: [[1, 1, 1, 1]], top: [[2, 1, 1]]}"},
       kAdamTolerance},
      {"shapes: channels by whole groups, 3 ranks, micro-batches",
       "shapes",
       {"train.epochs=25"},
       {ranks(3), kSemi, "parallel.strategies={up: [[1, 3, 1]], gn: [[1, 3, 1], [3], [3]], wide: [[1, 3, 1]]}"},
       kAdamTolerance},
  };
}

}  // namespace trainctl
