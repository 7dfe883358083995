// Names with holes: "h.{i}.attn.c_attn.{w}".
//
//   hole = "{" name "}"           a number without leading zeros, or one of the words of that name
//        | "{" name "+" number "}"     a number that is larger by this
//
// Equal holes in two patterns have equal values: the value that one pattern reads from a name is written by the other.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/source_pos.h"
#include "engine/spec/name_map_file.h"

namespace trainctl {

/// Values of the holes, by their names: a number, or the place of a word in its list.
using Holes = std::map<std::string, int64_t>;

/// The side to which names belong: the job, or the other tool.
enum class Side : uint8_t { ours, theirs };

class NamePattern {
 public:
  /// Throws SpecError at the text's position. `words` must outlive it.
  NamePattern(const NameMapFile::Text& text, Side side, const std::vector<NameMapFile::Words>& words,
              const std::string& path);

  const std::string& text() const { return text_.text; }
  const SourcePos& pos() const { return text_.pos; }
  std::set<std::string> holes() const;
  /// The values of the holes; empty if the name does not match. If several words fit a hole, the first one that leads
  /// to a match counts.
  std::optional<Holes> match(std::string_view name) const;
  /// check(): all holes of the pattern are given.
  std::string fill(const Holes& holes) const;
  /// Removes this prefix from the pattern, if the pattern begins with it.
  void drop_prefix(std::string_view prefix);

 private:
  struct Part {
    std::string literal;  ///< before the hole
    std::string hole;     ///< empty: the end
    int64_t plus = 0;
    const std::vector<std::pair<std::string, std::string>>* words = nullptr;
  };

  const std::string& word(const Part& part, size_t index) const;
  bool match_from(size_t part, std::string_view rest, Holes& holes) const;

  NameMapFile::Text text_;
  Side side_;
  std::vector<Part> parts_;
};

}  // namespace trainctl
