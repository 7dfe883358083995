// The normalizer of a tokenizer.json: what happens to a text before it is cut.
#include "engine/text/normalizers.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/text/byte_alphabet.h"
#include "engine/text/charsmap.h"
#include "engine/text/pattern.h"
#include "engine/text/unicode.h"

namespace trainctl {
namespace {

using namespace char_class;

/// Rewrites the text: calls `write(to, character)` for each character, which appends what takes its place.
template <class Write>
void rewrite(NormalizedText& text, Write write) {
  std::string result;
  result.reserve(text.text.size());
  size_t start_bytes = 0;
  for (size_t at = 0; at < text.text.size();) {
    const CodePoint c = code_point(text.text, at);
    write(result, c.value);
    if (at < text.start_bytes) start_bytes = result.size();
    at += c.bytes;
  }
  text.start_bytes = start_bytes;
  text.text = std::move(result);
}

void to_form(NormalizedText& text, NormalForm form) {
  if (is_ascii(text.text)) return;
  if (text.start_bytes > 0) {
    const size_t first = std::max<size_t>(text.start_bytes, code_point(text.text, 0).bytes);
    text.start_bytes = normal_form(text.text.substr(0, first), form).size();
  }
  text.text = normal_form(text.text, form);
}

Normalizer in_form(NormalForm form) {
  return [form](NormalizedText& text) { to_form(text, form); };
}

void lower(NormalizedText& text) { rewrite(text, append_lower); }

void drop_marks(NormalizedText& text) {
  rewrite(text, [](std::string& to, char32_t c) {
    if (!is_char(c, kMark)) append_utf8(to, c);
  });
}

bool is_chinese(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

void clean(NormalizedText& text) {
  rewrite(text, [](std::string& to, char32_t c) {
    const bool is_blank = c == '\t' || c == '\n' || c == '\r';
    if (c == 0 || c == 0xFFFD || (!is_blank && is_char(c, kOther))) return;
    append_utf8(to, is_blank || is_char(c, kSpace) ? U' ' : c);
  });
}

void space_chinese(NormalizedText& text) {
  rewrite(text, [](std::string& to, char32_t c) {
    if (is_chinese(c)) to += ' ';
    append_utf8(to, c);
    if (is_chinese(c)) to += ' ';
  });
}

void drop_nonspacing(NormalizedText& text) {
  if (is_ascii(text.text)) return;
  to_form(text, NormalForm::nfd);
  rewrite(text, [](std::string& to, char32_t c) {
    if (!is_nonspacing_mark(c)) append_utf8(to, c);
  });
}

Normalizer read_bert(const JsonPart& part) {
  const bool cleans = part.boolean("clean_text", true), spaces = part.boolean("handle_chinese_chars", true);
  const bool lowers = part.boolean("lowercase", true), strips = part.boolean("strip_accents", lowers);
  return [=](NormalizedText& text) {
    if (cleans) clean(text);
    if (spaces) space_chinese(text);
    if (strips) drop_nonspacing(text);
    if (lowers) lower(text);
  };
}

/// Reads the normalizer Strip, which removes white space from the ends of the text.
Normalizer read_strip(const JsonPart& part) {
  const bool left = part.boolean("strip_left", true), right = part.boolean("strip_right", true);
  return [=](NormalizedText& text) {
    size_t begin = text.text.size(), end = 0;
    for (size_t at = 0; at < text.text.size();) {
      const CodePoint c = code_point(text.text, at);
      if (!is_char(c.value, kSpace)) {
        begin = std::min(begin, at);
        end = at + c.bytes;
      }
      at += c.bytes;
    }
    if (!left) begin = 0;
    if (!right) end = text.text.size();
    text.start_bytes -= std::min(text.start_bytes, begin);
    text.text = begin < end ? text.text.substr(begin, end - begin) : std::string();
  };
}

/// Reads the normalizer Replace, which replaces each match of a pattern by a text.
Normalizer read_replace(const JsonPart& part) {
  const Cutter cutter = cut_by(read_pattern(part.at("pattern")));
  const std::string content = part.at("content").text();
  return [=](NormalizedText& text) {
    std::vector<Stretch> stretches;
    cutter(text.text, stretches);
    // Tokenizers counts the result of a match as beginning at the last character of the match.
    if (!stretches.empty() && stretches[0].matches)
      text.start_bytes = code_point(text.text, 0).bytes < stretches[0].end ? 0 : content.size();
    std::string result;
    for (const Stretch& s : stretches)
      s.matches ? result += content : result.append(text.text, s.begin, s.end - s.begin);
    text.text = std::move(result);
  };
}

Normalizer read_prepend(const JsonPart& part) {
  const std::string prefix = part.at("prepend").text();
  return [=](NormalizedText& text) {
    if (text.text.empty()) return;
    text.text.insert(0, prefix);
    if (text.start_bytes > 0) text.start_bytes += prefix.size();
  };
}

void nmt(NormalizedText& text) {
  rewrite(text, [](std::string& to, char32_t c) {
    if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F) return;
    const bool blank = c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                       c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
    append_utf8(to, blank ? U' ' : c);
  });
}

void to_byte_level(NormalizedText& text) {
  std::string result;
  size_t start_bytes = 0;
  for (size_t at = 0; at < text.text.size(); ++at) {
    result += byte_characters()[static_cast<unsigned char>(text.text[at])];
    if (at < text.start_bytes) start_bytes = result.size();
  }
  text.start_bytes = start_bytes;
  text.text = std::move(result);
}

Normalizer read_sequence(const JsonPart& part) {
  std::vector<Normalizer> steps;
  for (const JsonPart& step : part.at("normalizers").elements()) steps.push_back(read_normalizer(step));
  return [steps = std::move(steps)](NormalizedText& text) {
    for (const Normalizer& step : steps)
      if (step) step(text);
  };
}

}  // namespace

Normalizer read_normalizer(const JsonPart& part) {
  using Reader = Normalizer (*)(const JsonPart&);
  static const std::map<std::string, Reader> kReaders = {
      {"BertNormalizer", read_bert},
      {"ByteLevel", [](const JsonPart&) { return Normalizer(to_byte_level); }},
      {"Lowercase", [](const JsonPart&) { return Normalizer(lower); }},
      {"NFC", [](const JsonPart&) { return in_form(NormalForm::nfc); }},
      {"NFD", [](const JsonPart&) { return in_form(NormalForm::nfd); }},
      {"NFKC", [](const JsonPart&) { return in_form(NormalForm::nfkc); }},
      {"NFKD", [](const JsonPart&) { return in_form(NormalForm::nfkd); }},
      {"Nmt", [](const JsonPart&) { return Normalizer(nmt); }},
      {"Precompiled", read_charsmap},
      {"Prepend", read_prepend},
      {"Replace", read_replace},
      {"Sequence", read_sequence},
      {"Strip", read_strip},
      {"StripAccents", [](const JsonPart&) { return Normalizer(drop_marks); }}};
  if (part.is_null()) return {};
  const auto found = kReaders.find(part.type());
  if (found == kReaders.end()) part.fail("the normalizer '" + part.type() + "' is not supported");
  return found->second(part);
}

}  // namespace trainctl
