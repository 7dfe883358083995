// Decodes tokens as they are generated: text is output once no later token can change it. A decoder may treat the first
// token of a text differently than the same token later, and a character may consist of several tokens. So a few tokens
// are decoded without and with the new ones, and the difference is the new text, unless it ends within a character.
#include "engine/text/text_stream.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

namespace trainctl {
namespace {

constexpr size_t kContextTokens = 6;  ///< last tokens of the prompt, which are the context of the first new tokens
constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";

/// The length of the longest suffix of `text` that is a proper prefix of `stop`.
size_t begun(std::string_view text, std::string_view stop) {
  for (size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length)
    if (text.ends_with(stop.substr(0, length))) return length;
  return 0;
}

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt, std::vector<std::string> stops)
    : tokenizer_(tokenizer), stops_(std::move(stops)) {
  tokens_.assign(prompt.end() - static_cast<std::ptrdiff_t>(std::min(prompt.size(), kContextTokens)), prompt.end());
  read_ = tokens_.size();
}

std::string TextStream::decoded(size_t begin, size_t end) const {
  return tokenizer_.decode(std::span(tokens_).subspan(begin, end - begin), true);
}

std::string TextStream::release() {
  size_t end = held_.size();
  for (const std::string& stop : stops_)
    if (const size_t at = held_.find(stop); at != std::string::npos && at <= end) end = at, stopped_ = true;
  size_t kept = 0;
  if (!stopped_)
    for (const std::string& stop : stops_) kept = std::max(kept, begun(held_, stop));
  std::string text = held_.substr(0, end - kept);
  held_ = stopped_ ? "" : held_.substr(end - kept);
  return text;
}

/// Appends to held_ the part of `now` that follows its prefix `before`, and marks all tokens so far as decoded.
void TextStream::take_until(const std::string& now, const std::string& before) {
  held_ += now.substr(std::min(now.size(), before.size()));
  from_ = read_;
  read_ = tokens_.size();
}

std::string TextStream::add(int32_t token) {
  if (stopped_) return "";
  tokens_.push_back(token);
  const std::string now = decoded(from_, tokens_.size()), before = decoded(from_, read_);
  if (now.size() <= before.size() || now.ends_with(kReplacementCharacter)) return "";
  take_until(now, before);
  return release();
}

std::string TextStream::finish() {
  if (stopped_) return "";
  take_until(decoded(from_, tokens_.size()), decoded(from_, read_));
  std::string text = release();
  return text + std::exchange(held_, "");
}

}  // namespace trainctl
