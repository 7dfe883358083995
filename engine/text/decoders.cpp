// The decoder of a tokenizer.json: one function per type of decoder, each of which changes the texts of tokens.
#include "engine/text/decoders.h"

#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include "engine/base/text.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/metaspace.h"
#include "engine/text/pattern.h"
#include "engine/text/unicode.h"

namespace trainctl {
namespace {

constexpr std::string_view kReplacementText = "\xEF\xBF\xBD";

void fuse(std::vector<std::string>& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  tokens = {std::move(all)};
}

void from_byte_level(std::vector<std::string>& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += to_bytes(token).value_or(token);
  tokens = {valid_utf8(bytes)};
}

Decoder decode_metaspace(const JsonPart& part) {
  const Metaspace space = read_metaspace_fields(part);
  return [space](std::vector<std::string>& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i)
      replace_all(tokens[i], space.replacement, i == 0 && space.scheme != PrependScheme::never ? "" : " ");
  };
}

void clean_up(std::string& text) {
  constexpr std::pair<std::string_view, std::string_view> kPairs[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kPairs) replace_all(text, from, to);
}

Decoder decode_word_piece(const JsonPart& part) {
  const std::string prefix = part.text("prefix", "##");
  const bool cleans = part.boolean("cleanup", true);
  return [=](std::vector<std::string>& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) tokens[i] = tokens[i].starts_with(prefix) ? tokens[i].substr(prefix.size()) : " " + tokens[i];
      if (cleans) clean_up(tokens[i]);
    }
  };
}

std::optional<char> byte_token(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return {};
  unsigned value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (error != std::errc() || end != token.data() + 5) return {};
  return static_cast<char>(value);
}

/// Joins each run of byte tokens such as <0x41> into one text. If the bytes of a run are not valid UTF-8, each becomes
/// U+FFFD.
void join_byte_tokens(std::vector<std::string>& tokens) {
  std::vector<std::string> joined;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (find_invalid_utf8(bytes) == std::string_view::npos)
      joined.push_back(bytes);
    else
      joined.insert(joined.end(), bytes.size(), std::string(kReplacementText));
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const auto byte = byte_token(token)) {
      bytes += *byte;
      continue;
    }
    flush();
    joined.push_back(std::move(token));
  }
  flush();
  tokens = std::move(joined);
}

Decoder decode_strip(const JsonPart& part) {
  const std::string content = part.at("content").text();
  const int64_t start = part.at("start").integer(), stop = part.at("stop").integer();
  if (content.empty()) part.at("content").fail("is empty");
  return [=](std::vector<std::string>& tokens) {
    for (std::string& token : tokens) {
      for (int64_t i = 0; i < start && token.starts_with(content); ++i) token.erase(0, content.size());
      for (int64_t i = 0; i < stop && token.ends_with(content); ++i) token.resize(token.size() - content.size());
    }
  };
}

/// The decoder Replace: replaces each match of the pattern in the text of a token by the content.
Decoder decode_replace(const JsonPart& part) {
  const Cutter cutter = cut_by(read_pattern(part.at("pattern")));
  const std::string content = part.at("content").text();
  return [=](std::vector<std::string>& tokens) {
    std::vector<Stretch> stretches;
    for (std::string& token : tokens) {
      stretches.clear();
      cutter(token, stretches);
      std::string result;
      for (const Stretch& s : stretches) s.matches ? result += content : result.append(token, s.begin, s.end - s.begin);
      token = std::move(result);
    }
  };
}

Decoder decode_bpe(const JsonPart& part) {
  const std::string suffix = part.text("suffix", "</w>");
  if (suffix.empty()) part.at("suffix").fail("is empty");
  return [=](std::vector<std::string>& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) replace_all(tokens[i], suffix, i + 1 == tokens.size() ? "" : " ");
  };
}

Decoder decode_sequence(const JsonPart& part) {
  std::vector<Decoder> steps;
  for (const JsonPart& step : part.at("decoders").elements()) steps.push_back(read_decoder(step));
  return [steps = std::move(steps)](std::vector<std::string>& tokens) {
    for (const Decoder& step : steps)
      if (step) step(tokens);
  };
}

/// The number of invalid bytes at the front of `text` that Rust replaces by one U+FFFD. `text` does not begin with
/// valid UTF-8.
size_t broken_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0; };
  const unsigned first = byte(0), second = byte(1);
  const auto continues = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  if (first >= 0xE0 && first <= 0xEF) {
    const bool legal = continues(1) && (first != 0xE0 || second >= 0xA0) && (first != 0xED || second < 0xA0);
    return legal ? 2 : 1;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool legal = continues(1) && (first != 0xF0 || second >= 0x90) && (first != 0xF4 || second < 0x90);
    return legal ? (continues(2) ? 3 : 2) : 1;
  }
  return 1;
}

}  // namespace

std::string valid_utf8(std::string_view bytes) {
  std::string result;
  while (!bytes.empty()) {
    const size_t valid = std::min(find_invalid_utf8(bytes), bytes.size());
    result += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    result += kReplacementText;
    bytes.remove_prefix(std::min(broken_bytes(bytes), bytes.size()));
  }
  return result;
}

Decoder read_decoder(const JsonPart& part) {
  using Reader = Decoder (*)(const JsonPart&);
  static const std::map<std::string, Reader> kReaders = {
      {"BPEDecoder", decode_bpe},
      {"ByteFallback", [](const JsonPart&) { return Decoder(join_byte_tokens); }},
      {"ByteLevel", [](const JsonPart&) { return Decoder(from_byte_level); }},
      {"Fuse", [](const JsonPart&) { return Decoder(fuse); }},
      {"Metaspace", decode_metaspace},
      {"Replace", decode_replace},
      {"Sequence", decode_sequence},
      {"Strip", decode_strip},
      {"WordPiece", decode_word_piece}};
  if (part.is_null()) return {};
  const auto found = kReaders.find(part.type());
  if (found == kReaders.end()) part.fail("the decoder '" + part.type() + "' is not supported");
  return found->second(part);
}

}  // namespace trainctl
