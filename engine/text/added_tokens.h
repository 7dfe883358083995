// Tokens that are found in a text before it is tokenized, such as <|im_start|>.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/byte_trie.h"
#include "engine/text/json_part.h"
#include "engine/text/normalizers.h"
#include "engine/text/token_model.h"

namespace trainctl {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;                      ///< only where no letter touches it
  bool left_strip = false, right_strip = false;  ///< it takes the white space on that side
  bool normalized = false;                       ///< found in the normalized text
  bool special = false;
};

class AddedTokens {
 public:
  /// A part of a text: an added token, or text between them (token -1).
  struct Part {
    size_t begin = 0, end = 0;
    int32_t token = -1;
  };

  AddedTokens() = default;
  AddedTokens(const JsonPart& list, const TokenModel& model, const Normalizer& normalizer);

  /// Cuts a text at the tokens that are found in the original or the normalized text.
  void find(std::string_view text, bool normalized, std::vector<Part>& to) const;
  bool has_normalized() const { return !sets_[1].patterns.empty(); }
  const AddedToken* by_id(int32_t id) const;
  const AddedToken* by_text(std::string_view text) const;
  int32_t largest() const { return by_id_.empty() ? -1 : by_id_.rbegin()->first; }

 private:
  struct TokenSet {
    std::vector<const AddedToken*> patterns;
    ByteTrie trie;
    std::array<bool, 256> first_bytes{};
  };
  void add(AddedToken token, const TokenModel& model);

  std::map<int32_t, AddedToken> by_id_;
  std::map<std::string, int32_t, std::less<>> by_text_;
  int64_t largest_given_ = -1;
  std::array<TokenSet, 2> sets_;  ///< tokens in the original text, in the normalized text
};

}  // namespace trainctl
