// Decodes tokens as they are generated: text is output once no later token can change it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/text/tokenizer.h"

namespace trainctl {

class TextStream {
 public:
  /// The text follows `prompt`. It ends before the first of the `stops` that it contains. `tokenizer` must outlive it.
  TextStream(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt, std::vector<std::string> stops);

  /// Returns the text that is certain with this token: complete characters that cannot begin a stop.
  std::string add(int32_t token);
  /// Returns the rest. No token follows.
  std::string finish();
  /// Returns whether the text contains a stop; no more text is given out.
  bool stopped() const { return stopped_; }

 private:
  std::string decoded(size_t begin, size_t end) const;
  std::string release();
  void take_until(const std::string& now, const std::string& before);

  const Tokenizer& tokenizer_;
  const std::vector<std::string> stops_;
  std::vector<int32_t> tokens_;
  size_t from_ = 0, read_ = 0;  ///< tokens [from_, read_) are the context of the tokens that are decoded next
  std::string held_;            ///< text that is decoded but not returned yet
  bool stopped_ = false;
};

}  // namespace trainctl
