// The pre-tokenizer of a tokenizer.json: how a text is cut into pieces that are tokenized by themselves.
#include "engine/text/pre_tokenizers.h"

#include <map>
#include <utility>

#include "engine/text/byte_alphabet.h"
#include "engine/text/known_patterns.h"
#include "engine/text/metaspace.h"
#include "engine/text/pattern.h"
#include "engine/text/unicode.h"

namespace trainctl {
namespace {

using namespace char_class;

/// Replaces the text by what `write(to, piece)` writes for each piece.
template <class Write>
void rewrite_pieces(Pieces& pieces, Write write) {
  std::string text;
  text.reserve(pieces.text.size() + pieces.text.size() / 4);
  for (TextPiece& piece : pieces.pieces) {
    const size_t begin = text.size();
    write(text, piece);
    piece.begin = begin;
    piece.end = text.size();
  }
  pieces.start_bytes = 1;
  pieces.buffer = std::move(text);
  pieces.text = pieces.buffer;
}

PreTokenizer splitting(Cutter cutter, SplitBehavior behavior) {
  return [cutter = std::move(cutter), behavior](Pieces& pieces) { split(pieces, cutter, behavior); };
}

void prefix_spaces(Pieces& pieces) {
  rewrite_pieces(pieces, [&](std::string& to, const TextPiece& piece) {
    const std::string_view text = pieces.of(piece);
    if (!text.starts_with(' ')) to += ' ';
    to += text;
  });
}

void read_byte_level(const JsonPart& part, PreTokenizers& to) {
  if (part.boolean("add_prefix_space", true)) to.steps.emplace_back(prefix_spaces);
  if (part.boolean("use_regex", true))
    to.steps.push_back(splitting(*find_known_pattern(kGpt2Pattern), SplitBehavior::isolated));
  to.ends_with_bytes = true;
}

/// Reads the pre-tokenizer Metaspace, which writes spaces as underlines and may cut the text before them.
void read_metaspace(const JsonPart& part, PreTokenizers& to) {
  const Metaspace space = read_metaspace_fields(part);
  to.steps.emplace_back([space](Pieces& pieces) {
    rewrite_pieces(pieces, [&](std::string& out, const TextPiece& piece) {
      const std::string_view text = pieces.of(piece);
      const bool prepends =
          space.scheme == PrependScheme::always || (space.scheme == PrependScheme::first && piece.is_first);
      if (prepends && !text.starts_with(space.replacement) && !text.starts_with(' ')) out += space.replacement;
      for (const char c : text) c == ' ' ? out += space.replacement : out += c;
    });
  });
  if (part.boolean("split", true))
    to.steps.push_back(splitting(cut_by(Regex(escape_regex(space.replacement))), SplitBehavior::merged_with_next));
}

void read_split(const JsonPart& part, PreTokenizers& to) {
  const SplitBehavior behavior = read_behavior(part.at("behavior"));
  const bool invert = part.boolean("invert", false);
  const JsonPart pattern = part.at("pattern");
  if (pattern.has("Regex") && !invert && behavior != SplitBehavior::removed)
    if (auto known = find_known_pattern(pattern.at("Regex").text()); known && behavior == SplitBehavior::isolated) {
      to.steps.push_back(splitting(*known, behavior));
      return;
    }
  to.steps.push_back(splitting(cut_by(read_pattern(pattern), invert), behavior));
}

bool is_punctuation(char32_t c) {
  return is_char(c, kPunctuation) ||
         (c < 0x80 && std::string_view("$+<=>^`|~").find(static_cast<char>(c)) != std::string_view::npos);
}

bool is_space(char32_t c) { return is_char(c, kSpace); }

void read_bert(const JsonPart&, PreTokenizers& to) {
  to.steps.push_back(splitting(cut_by(is_space), SplitBehavior::removed));
  to.steps.push_back(splitting(cut_by(is_punctuation), SplitBehavior::isolated));
}

/// The pre-tokenizer Whitespace: its pieces are the matches of \w+|[^\w\s]+.
void read_whitespace(const JsonPart&, PreTokenizers& to) {
  to.steps.push_back(splitting(cut_by(is_space), SplitBehavior::removed));
  to.steps.push_back(splitting(cut_by([](char32_t c) { return is_char(c, kWord); }), SplitBehavior::contiguous));
}

void read_digits(const JsonPart& part, PreTokenizers& to) {
  const bool individual = part.boolean("individual_digits", false);
  to.steps.push_back(splitting(cut_by([](char32_t c) { return is_char(c, kNumber); }),
                               individual ? SplitBehavior::isolated : SplitBehavior::contiguous));
}

void read_punctuation(const JsonPart& part, PreTokenizers& to) {
  const auto behavior = part.has("behavior") ? read_behavior(part.at("behavior")) : SplitBehavior::isolated;
  to.steps.push_back(splitting(cut_by(is_punctuation), behavior));
}

void read_delimiter(const JsonPart& part, PreTokenizers& to) {
  to.steps.push_back(splitting(cut_by(Regex(escape_regex(part.at("delimiter").text()))), SplitBehavior::removed));
}

void read_any(const JsonPart& part, PreTokenizers& to);

void read_sequence(const JsonPart& part, PreTokenizers& to) {
  for (const JsonPart& step : part.at("pretokenizers").elements()) read_any(step, to);
}

void read_any(const JsonPart& part, PreTokenizers& to) {
  using Reader = void (*)(const JsonPart&, PreTokenizers&);
  static const std::map<std::string, Reader> kReaders = {
      {"BertPreTokenizer", read_bert},
      {"ByteLevel", read_byte_level},
      {"CharDelimiterSplit", read_delimiter},
      {"Digits", read_digits},
      {"Metaspace", read_metaspace},
      {"Punctuation", read_punctuation},
      {"Sequence", read_sequence},
      {"Split", read_split},
      {"Whitespace", read_whitespace},
      {"WhitespaceSplit", [](const JsonPart&, PreTokenizers& steps) {
         steps.steps.push_back(splitting(cut_by(is_space), SplitBehavior::removed));
       }}};
  const auto found = kReaders.find(part.type());
  if (found == kReaders.end()) part.fail("the pre-tokenizer '" + part.type() + "' is not supported");
  if (std::exchange(to.ends_with_bytes, false)) to.steps.emplace_back(write_bytes_as_characters);
  found->second(part, to);
}

}  // namespace

void write_bytes_as_characters(Pieces& pieces) {
  rewrite_pieces(pieces, [&](std::string& to, const TextPiece& piece) {
    for (const char c : pieces.of(piece)) to += byte_characters()[static_cast<unsigned char>(c)];
  });
}

PreTokenizers read_pre_tokenizers(const JsonPart& part) {
  PreTokenizers result;
  if (!part.is_null()) read_any(part, result);
  return result;
}

}  // namespace trainctl
