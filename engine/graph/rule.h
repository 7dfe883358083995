// Rules tie the dims of a node's tensors together by factors: that of matmul is "mk,kn->mn".
//
//   text  := inputs "->" outputs          tensors separated by ','
//   tensor:= dim*                         "" is a scalar
//   dim   := letter                       one factor
//          | "(" letter* ")"              several, major first ("(chw)"); "()" is a dim of size 1
//                                         that no factor cuts (broadcast)
//          | "." is not used
//
// A factor that an output has is cut in parallel. A factor that only inputs have is a contraction:
// cutting it leaves that output a partial sum over the axes that cut it. An inner factor is neither:
// if it is cut, the ranks exchange sums or elements inside the op (OpDef::inner_sum), and no output is partial.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/graph/shape.h"

namespace trainctl {

/// Indices into the factors of the layer, major first. Empty: a dim of size 1.
using DimRule = std::vector<int>;
using TensorRule = std::vector<DimRule>;

struct Rule {
  std::vector<TensorRule> inputs;
  std::vector<TensorRule> outputs;
  std::vector<int> inner;  ///< factors that the op sums over itself, or whose elements its ranks exchange
  friend bool operator==(const Rule&, const Rule&) = default;
};

/// One independent index of a layer, e.g. the rows of its input.
struct Factor {
  std::string name;  ///< a letter, as in the rule's text
  int64_t size = 1;
  bool cuttable = true;
  std::string why_not;   ///< when !cuttable: "the op needs the whole dim on one rank"
  std::string why_size;  ///< where the size is not that of a dim: "its parts, [4, 6], are multiples of 2"
};

/// A rule as an op writes it, in letters; letters in `uncuttable` may not be cut.
struct RuleText {
  std::string text;             ///< "mk,kn->mn"
  std::string uncuttable = "";  ///< letters
  std::string why_not = "";     ///< the reason for those letters
  std::string inner = "";       ///< letters that the op sums over itself, or whose elements its ranks exchange
  /// Sizes of letters that no shape determines: in "b(hd)->b(hd)" that of h or d.
  std::vector<std::pair<char, int64_t>> sizes = {};
  std::string why_size = "";  ///< why the letters in `sizes` have these sizes
};

/// The dims of every tensor of a rule text as strings of letters: parse("n(ch)->n") gives
/// {{{"n","ch"}}, {{"n"}}}.
struct RuleLetters {
  std::vector<std::vector<std::string>> inputs, outputs;
};
RuleLetters parse_rule(std::string_view text);

/// If a dim of several factors is cut, its first factor of size > 1 is cut (a block of a row-major dim is a block of
/// its major factor). Returns that factor or -1 for a dim of size 1.
int cut_factor(const DimRule& dim, const std::vector<Factor>& factors);

std::string to_string(const Rule& rule, const std::vector<Factor>& factors);

}  // namespace trainctl
