// Prints failures: one line per diagnostic, and the excerpt with its caret.
#include "engine/base/error.h"

#include <algorithm>

#include "engine/base/printable.h"

namespace trainctl {
namespace {

std::string first_line(const Diagnostic& diagnostic) {
  std::string text;
  if (!diagnostic.pos.file.empty() || diagnostic.pos.known()) {
    text += diagnostic.pos.file;
    if (diagnostic.pos.known())
      text += ":" + std::to_string(diagnostic.pos.line) + ":" + std::to_string(diagnostic.pos.column);
    text += ": ";
  }
  if (!diagnostic.path.empty()) text += diagnostic.path + ": ";
  return printable(text + diagnostic.message);
}

std::string all_lines(const std::vector<Diagnostic>& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) {
    if (!text.empty()) text += '\n';
    text += first_line(diagnostic);
    if (!diagnostic.hint.empty()) text += " (" + printable(diagnostic.hint) + ")";
  }
  return text;
}

/// Line `number` (from 1) without its newline; false if the text is shorter.
bool find_line(std::string_view source, int number, std::string_view& line) {
  for (int i = 1; i < number; ++i) {
    const size_t end = source.find('\n');
    if (end == std::string_view::npos) return false;
    source.remove_prefix(end + 1);
  }
  line = source.substr(0, source.find('\n'));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return true;
}

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

/// Printable, except that tabs stay.
std::string excerpt(std::string_view line) {
  std::string shown;
  for (size_t tab; (tab = line.find('\t')) != std::string_view::npos; line.remove_prefix(tab + 1))
    shown += printable(line.substr(0, tab)) + '\t';
  return shown + printable(line);
}

/// Text to print left of the caret: as wide as the line up to `column`, with its tabs. Columns count characters, not
/// bytes.
std::string indent_of(std::string_view line, int column) {
  std::string indent;
  int characters = 0;
  for (size_t i = 0; i < line.size() && characters < column - 1; ++characters) {
    const size_t length = std::max<size_t>(1, utf8_length(line.substr(i)));
    const std::string shown = excerpt(line.substr(i, length));
    indent += shown == "\t" ? "\t" : std::string(count_characters(shown), ' ');
    i += length;
  }
  // A caret may be one position past the end, where something is missing, but never further.
  return indent;
}

/// Cuts a long line to a readable part around `column`, which moves with it.
void shorten(std::string_view& line, int& column) {
  constexpr size_t kMax = 160;
  if (line.size() <= kMax) return;
  size_t begin = 0;
  if (static_cast<size_t>(column) > kMax / 2) begin = static_cast<size_t>(column) - kMax / 2;
  if (begin > line.size()) begin = line.size();
  while (begin < line.size() && continues_character(line[begin])) ++begin;
  column -= static_cast<int>(begin);
  size_t size = std::min(kMax, line.size() - begin);
  while (begin + size < line.size() && continues_character(line[begin + size])) --size;
  line = line.substr(begin, size);
}

}  // namespace

SpecError::SpecError(std::vector<Diagnostic> diagnostics)
    : std::runtime_error(all_lines(diagnostics)), diagnostics_(std::move(diagnostics)) {}

SpecError::SpecError(SourcePos pos, std::string path, std::string message, std::string hint)
    : SpecError(std::vector<Diagnostic>{{std::move(pos), std::move(path), std::move(message), std::move(hint)}}) {}

std::string render(const Diagnostic& diagnostic, std::string_view source) {
  std::string text = first_line(diagnostic) + "\n";
  const std::string hint = printable(diagnostic.hint);
  if (source.starts_with("\xEF\xBB\xBF")) source.remove_prefix(3);  // columns do not count it
  std::string_view line;
  if (!source.empty() && diagnostic.pos.known() && find_line(source, diagnostic.pos.line, line)) {
    int column = diagnostic.pos.column;
    shorten(line, column);
    text += "    " + excerpt(line) + "\n    " + indent_of(line, column) + "^";
    if (!hint.empty()) text += " " + hint;
    return text + "\n";
  }
  if (!hint.empty()) text += "  " + hint + "\n";
  return text;
}

void check_failed(std::string_view what, const std::source_location& where) {
  throw InternalError(std::string(what) + " [" + where.file_name() + ":" + std::to_string(where.line()) + ", " +
                      where.function_name() + "]; this is a bug in trainctl, not in the job");
}

}  // namespace trainctl
