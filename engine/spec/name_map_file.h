// A file of name maps: what the tensors of a job are called in another tool's file, and how they are laid out there.
//
//   prefix: transformer.                      # which files of the bare model lack; may be absent
//   words: {w: [weight, bias], part: {a: 1, b: 2}}      # what {w} and {part} stand for, here and there
//   tensors:                                  # ours: theirs
//     wte.weight: transformer.wte.weight
//     h.{i}.ln1.{w}: transformer.h.{i}.ln_1.{w}         # {i}: a number, {i+1}: the next one
//     h.{i}.moe.down:
//       name: layers.{i}.experts.{e}.down.weight        # for each index e of dim 0 of ours: the tensors in `name`
//       each: {e: "h.{i}.moe.experts"}                  # the number of indices; the order has the other dims
//       order: "d h = d h"
//     h.{i}.qkv.weight:
//       name: transformer.h.{i}.attn.c_attn.weight      # or a list of names
//       order: "(h p k) d = d (p h k)"        # dims, ours = theirs; in ( ) what a dim is made of
//       sizes: {h: "h.{i}.attn.heads", p: 3}  # a number, or a field of a layer; of a list the first that is set
//   ignore: ["transformer.h.{i}.attn.bias"]   # theirs without a counterpart in the job
//   fused:                                    # theirs: one tensor of the file joins these
//                                             along dim 0
//     layers.{i}.gate_up.weight: [layers.{i}.gate.weight, layers.{i}.up.weight]
//   tied: {lm_head.weight: transformer.wte.weight}      # theirs: one tensor under two names
//   constants:                                # theirs that are written for each `with` of ours, and not read
//     bn1.num_batches_tracked: {with: stem.bn.running_mean, dtype: I64, value: steps}   # or a number
//
// engine/train/checkpoint/name_map.h gives it its meaning.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/source_pos.h"

namespace trainctl {

struct NameMapFile {
  struct Text {
    std::string text;
    SourcePos pos;
  };
  struct Words {
    Text name;
    std::vector<std::pair<std::string, std::string>> words;  ///< ours, theirs
  };
  struct Size {
    Text letters;              ///< the dims whose size this is: "h"; for "g r" it is the product of both sizes
    std::vector<Text> values;  ///< each a number or layer.field; the first that is set gives the size
  };
  struct Tensor {
    Text ours;
    std::vector<Text> theirs;
    Text order;  ///< empty: the order of dims is the same in both
    std::vector<Size> sizes;
    Size each;  ///< `letters` is the placeholder that counts the indices of dim 0 of ours; empty: none
  };
  struct Fused {
    Text whole;               ///< in the file
    std::vector<Text> parts;  ///< names that `tensors` uses
  };
  struct Tied {
    Text name, same_as;
  };
  struct Constant {
    Text name, with, dtype;
    int64_t value = 0;
    bool is_steps = false;  ///< `value: steps`: how many were trained
  };

  Text prefix;
  std::vector<Words> words;
  std::vector<Tensor> tensors;
  std::vector<Text> ignore;
  std::vector<Fused> fused;
  std::vector<Tied> tied;
  std::vector<Constant> constants;
};

/// Throws SpecError with all that is wrong with its form.
NameMapFile read_name_map(std::string_view text, const std::string& file);

}  // namespace trainctl
